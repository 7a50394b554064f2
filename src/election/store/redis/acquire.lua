-- Wins the lease if it is absent, or if it is a leftover of this very instance.
-- KEYS: lease, term. ARGV: id, ttl (ms), floor, attempt.

-- A write that changes nothing goes first. A server that became a replica answers READONLY here, not a
-- stale "no"; a term key of the wrong type is told before anything is written; and once a script has
-- written, a server out of memory lets it finish.
local probe = redis.pcall('HDEL', KEYS[2], '')
if type(probe) == 'table' then return probe end

local id, ttl, floor, attempt = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local holder = redis.call('GET', KEYS[1])
local term = redis.call('HMGET', KEYS[2], 'token', 'holder', 'attempt')

if holder and holder ~= id then
  -- A holder that keeps no term (a Go instance) must not be given the token of an earlier one.
  return {'held', holder, redis.call('PTTL', KEYS[1]), term[2] == holder and term[1] or ''}
end

-- An attempt that comes late, after a later one was answered, would begin a term that nobody serves.
local seen = term[2] == id and tonumber(term[3]) or 0
if tonumber(attempt) <= seen then return {'ghost'} end

-- Beyond 2^53 - 1 a number of Lua is no longer exact, and tokens could repeat.
local last = term[1] or '0'
if not string.find(last, '^%d+$') or tonumber(last) >= 9007199254740991 then
  return redis.error_reply('BADTERM field token of ' .. KEYS[2] .. ' is not a number below 2^53 - 1; '
    .. 'set it to the last token in use, or delete the key if that is lost')
end
local now = redis.call('TIME')
local time = now[1] * 1000000 + now[2]
local token = math.max(last + 1, time, floor + 1)
if token >= 9007199254740991 then
  return redis.error_reply('BADTERM no token below 2^53 - 1 is left for ' .. KEYS[2] .. '; '
    .. 'set its field token to the last token in use, and restart instances that saw a larger one')
end

-- What renewing and releasing will need is asked for before it is too late: a user who may only win would
-- be elected over and over, and keep the lease from those who can hold it. There is no lease here, or a
-- leftover that nobody serves, which must not live longer by this.
redis.call('PTTL', KEYS[1])
redis.call('DEL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ttl)

-- tostring would give 1.79e+15. The term comes first: a right that is missing for either write then
-- never leaves a lease without its term.
token, time = string.format('%.0f', token), string.format('%.0f', time)
redis.call('HSET', KEYS[2], 'token', token, 'holder', id, 'since', time, 'ttl', ttl, 'attempt', attempt)
redis.call('SET', KEYS[1], id, 'PX', ttl)
return {'won', token, time}
