-- Reads who holds the lease. Writes nothing, so that it may run where writing is not allowed.
-- KEYS: lease, term.

local holder = redis.call('GET', KEYS[1])
if not holder then return {'vacant'} end

local term = redis.call('HMGET', KEYS[2], 'token', 'holder')
return {'held', holder, redis.call('PTTL', KEYS[1]), term[2] == holder and term[1] or ''}
