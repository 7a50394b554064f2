-- Sets the lease's expiry again, if this id still holds it under this token. Never re-creates it.
-- KEYS: lease, term. ARGV: id, token, ttl (ms); under strict also replicas, and the data set that
-- has acknowledged the renewals before this one for the longest ttl.

-- A write that changes nothing goes first, so that a replica answers READONLY and not a stale "no".
local probe = redis.pcall('HDEL', KEYS[2], '')
if type(probe) == 'table' then return probe end

local id, token, ttl, replicas, acknowledged = unpack(ARGV)
local holder = redis.call('GET', KEYS[1])
if not holder then return {'vacant'} end
local term = redis.call('HMGET', KEYS[2], 'token', 'lineage')
if holder ~= id or term[1] ~= token then return held(holder) end

local here
if acknowledged then
  here = lineage(replicas)
  if type(here) == 'table' then return here end
end
local left = redis.call('PTTL', KEYS[1])

redis.call('PEXPIRE', KEYS[1], ttl)
if acknowledged then
  local now = redis.call('TIME')
  local ends = now[1] * 1000 + math.floor(now[2] / 1000) + ttl
  redis.call('HSET', KEYS[2], 'until', string.format('%.0f', ends))
  -- This lease has lived on in a data set that took another's place, and its replicas know that by now.
  if acknowledged == here and term[2] ~= here then redis.call('HSET', KEYS[2], 'lineage', here) end
end
return {'renewed', left, here}
