-- Reads who holds the lease. Writes nothing, so that it may run where writing is not allowed.
-- KEYS: lease, term.

local holder = redis.call('GET', KEYS[1])
if not holder then return {'vacant'} end
return held(holder)
