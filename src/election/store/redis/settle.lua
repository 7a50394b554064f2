-- Records that replicas of this data set have acknowledged the lease that this instance has parked, and begins its
-- hold anew: until now an earlier data set may have been acknowledged, too.
-- KEYS: lease, term. ARGV: id, the data set that acknowledged, the longest ttl (ms), replicas.

-- A write that changes nothing goes first, so that a replica answers READONLY and not a stale "no".
local probe = redis.pcall('HDEL', KEYS[2], '')
if type(probe) == 'table' then return probe end

local id, acknowledged, longest, replicas = unpack(ARGV)
local holder = redis.call('GET', KEYS[1])
if not holder then return {'vacant'} end
local here = lineage(replicas)
if type(here) == 'table' then return here end
if holder ~= 'hold/' .. id or here ~= acknowledged then return held(holder) end

local known = redis.call('HMGET', KEYS[2], 'longest')[1]
longest = math.max(tonumber(longest), tonumber(known) or 0)
local now = redis.call('TIME')
local ends = now[1] * 1000 + math.floor(now[2] / 1000) + longest
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', longest))
redis.call('HSET', KEYS[2], 'lineage', here, 'until', string.format('%.0f', ends))
return held(holder)
