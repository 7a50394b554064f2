-- Deletes the lease and wakes the followers, if this id still holds it under this token.
-- KEYS: lease, term. ARGV: id, token.

-- A write that changes nothing goes first, so that a replica answers READONLY and not a stale "no".
local probe = redis.pcall('HDEL', KEYS[2], '')
if type(probe) == 'table' then return probe end

local id, token = ARGV[1], ARGV[2]
local holder = redis.call('GET', KEYS[1])
local term = redis.call('HMGET', KEYS[2], 'token', 'holder')

if not holder then return {'vacant'} end
-- The token too, so that a release that comes late cannot end a later term of the same instance.
if holder ~= id or term[1] ~= token then
  return {'held', holder, redis.call('PTTL', KEYS[1]), term[2] == holder and term[1] or ''}
end

redis.call('DEL', KEYS[1])
-- The lease is gone, whether or not this user may publish: a wake only saves time.
redis.pcall('PUBLISH', KEYS[1] .. ':wake', token)
return {'released'}
