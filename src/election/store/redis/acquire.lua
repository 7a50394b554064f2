-- Wins the lease if it is absent, or if it is a leftover of this very instance; under strict it may park it.
-- KEYS: lease, term. ARGV: id, ttl (ms), floor, attempt; under strict also the longest ttl (ms), replicas.

-- A write that changes nothing goes first. A server that became a replica answers READONLY here, not a
-- stale "no"; a term key of the wrong type is told before anything is written; and once a script has
-- written, a server out of memory lets it finish.
local probe = redis.pcall('HDEL', KEYS[2], '')
if type(probe) == 'table' then return probe end

local id, ttl, floor, attempt, longest, replicas = unpack(ARGV)
local strict, hold = longest ~= nil, 'hold/' .. id
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= id and not (strict and holder == hold) then return held(holder) end

local fields = redis.call(
  'HMGET', KEYS[2], 'token', 'holder', 'attempt', 'lineage', 'until', 'replicas', 'longest')
local last, of, seen = fields[1] or '0', fields[2], tonumber(fields[3]) or 0

-- An attempt that comes late, after a later one was answered, would begin a term that nobody serves.
if (of == id or of == hold) and tonumber(attempt) <= seen then return {'ghost'} end

-- Beyond 2^53 - 1 a number of Lua is no longer exact, and tokens could repeat.
if not string.find(last, '^%d+$') or tonumber(last) >= 9007199254740991 then
  return redis.error_reply('BADTERM field token of ' .. KEYS[2] .. ' is not a number below 2^53 - 1; '
    .. 'set it to the last token in use, or delete the key if that is lost')
end
local now = redis.call('TIME')
local time, clock = now[1] * 1000000 + now[2], now[1] * 1000 + math.floor(now[2] / 1000)
local token = math.max(last + 1, time, floor + 1)
if token >= 9007199254740991 then
  return redis.error_reply('BADTERM no token below 2^53 - 1 is left for ' .. KEYS[2] .. '; '
    .. 'set its field token to the last token in use, and restart instances that saw a larger one')
end

-- How long the lease must be parked first. A data set that has not acknowledged a lease of this group may lack
-- what another one granted, also where a leftover of our own is in it. On the right one a lease that is gone
-- before its time is waited out, unless it was promised to this very instance, which knows that it leads no more.
local here, parked = nil, 0
if strict then
  here = lineage(replicas)
  if type(here) == 'table' then return here end
  local known = fields[4] == here
  if holder == hold and known then return held(holder) end
  -- Who had the lease may have known of a longer ttl than this instance does.
  longest = math.max(tonumber(longest), tonumber(fields[7]) or 0)
  if holder == hold then
    -- Parked by this instance, and not acknowledged in time: it is asked for again for what is left of it.
    parked = redis.call('PTTL', KEYS[1])
    if parked < 1 then parked = longest end
  elseif not known then
    parked = longest
  elseif not holder and of ~= id then
    parked = math.min((tonumber(fields[5]) or 0) - clock, longest)
  end
end

-- What renewing and releasing will need is asked for before it is too late: a user who may only win would
-- be elected over and over, and keep the lease from those who can hold it. There is no lease here, or a
-- leftover that nobody serves, which must not live longer by this.
redis.call('PTTL', KEYS[1])
redis.call('DEL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ttl)

-- tostring would give 1.79e+15. The term comes first: a right that is missing for either write then
-- never leaves a lease without its term.
local text = function(number) return string.format('%.0f', number) end
if parked > 0 then
  redis.call('HSET', KEYS[2], 'holder', hold, 'attempt', attempt, 'until', text(clock + parked),
    'replicas', replicas, 'longest', text(longest))
  redis.call('SET', KEYS[1], hold, 'PX', text(parked))
  return {'parked', hold, parked, fields[4] ~= here and here or nil}
end
redis.call('HSET', KEYS[2], 'token', text(token), 'holder', id, 'since', text(time), 'ttl', ttl, 'attempt', attempt)
if strict then
  redis.call('HSET', KEYS[2], 'until', text(clock + ttl), 'replicas', replicas, 'longest', ARGV[5])
elseif fields[4] or fields[5] or fields[6] or fields[7] then
  -- What follows an instance that is not strict begins with a hold.
  redis.call('HDEL', KEYS[2], 'lineage', 'until', 'replicas', 'longest')
end
redis.call('SET', KEYS[1], id, 'PX', ttl)
return {'won', text(token), text(time), here}
