-- Sets the lease's expiry again, if this id still holds it under this token. Never re-creates it.
-- KEYS: lease, term. ARGV: id, token, ttl (ms).

-- A write that changes nothing goes first, so that a replica answers READONLY and not a stale "no".
local probe = redis.pcall('HDEL', KEYS[2], '')
if type(probe) == 'table' then return probe end

local id, token, ttl = ARGV[1], ARGV[2], ARGV[3]
local holder = redis.call('GET', KEYS[1])
local term = redis.call('HMGET', KEYS[2], 'token', 'holder')

if not holder then return {'vacant'} end
local left = redis.call('PTTL', KEYS[1])
if holder ~= id or term[1] ~= token then
  return {'held', holder, left, term[2] == holder and term[1] or ''}
end

redis.call('PEXPIRE', KEYS[1], ttl)
return {'renewed', left}
