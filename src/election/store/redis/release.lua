-- Deletes the lease and wakes the followers, if this id still holds it under this token.
-- KEYS: lease, term. ARGV: id, token, whether to wake (1 or 0).

-- A write that changes nothing goes first, so that a replica answers READONLY and not a stale "no".
local probe = redis.pcall('HDEL', KEYS[2], '')
if type(probe) == 'table' then return probe end

local id, token, wake = unpack(ARGV)
local holder = redis.call('GET', KEYS[1])
local term = redis.call('HMGET', KEYS[2], 'token', 'holder', 'until')

-- The token too, so that a release that comes late cannot end a later term of the same instance.
if holder and (holder ~= id or term[1] ~= token) then return held(holder) end
-- Under strict: what was promised to this term need not be waited out, for it has ended.
if term[1] == token and term[2] == id and term[3] then redis.call('HSET', KEYS[2], 'until', '0') end
if not holder then return {'vacant'} end

redis.call('DEL', KEYS[1])
-- The lease is gone, whether or not this user may publish: a wake only saves time.
local told = wake == '1' and redis.pcall('PUBLISH', KEYS[1] .. ':wake', token)
return {'released', type(told) == 'table' and told.err or nil}
