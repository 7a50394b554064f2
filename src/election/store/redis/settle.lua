-- Records that replicas of this data set have acknowledged the lease that this instance has parked, and begins its
-- hold anew: until now an earlier data set may have been acknowledged, too.
-- KEYS: lease, term. ARGV: id, the data set that acknowledged, the longest ttl (ms).

-- A write that changes nothing goes first, so that a replica answers READONLY and not a stale "no".
local probe = redis.pcall('HDEL', KEYS[2], '')
if type(probe) == 'table' then return probe end

local id, acknowledged, longest = unpack(ARGV)
local holder = redis.call('GET', KEYS[1])
if not holder then return {'vacant'} end
local here = lineage()
if type(here) == 'table' then return here end
if holder ~= 'hold/' .. id or here ~= acknowledged then return held(holder) end

local now = redis.call('TIME')
local ends = now[1] * 1000 + math.floor(now[2] / 1000) + longest
redis.call('PEXPIRE', KEYS[1], longest)
redis.call('HSET', KEYS[2], 'lineage', here, 'until', string.format('%.0f', ends))
return held(holder)
