-- What the scripts share. KEYS: lease, term.

-- Which data set this is: an id that a restart or a promotion of the server changes.
local function lineage()
  local info = redis.pcall('INFO', 'replication')
  local id = type(info) == 'string' and string.match(info, 'master_replid:(%w+)')
  if id then return id end
  return redis.error_reply('NOLINEAGE strict needs master_replid of INFO replication, which cannot be read here: '
    .. (type(info) == 'table' and info.err or 'this server does not tell it'))
end

-- The answer that somebody has the lease. A holder that keeps no term (a Go instance) must not be given the
-- token of an earlier one, and what is parked has no leader.
local function held(holder)
  local term = redis.call('HMGET', KEYS[2], 'holder', 'token', 'replicas')
  local keeps = term[1] == holder and string.sub(holder, 1, 5) ~= 'hold/'
  return {'held', holder, redis.call('PTTL', KEYS[1]), keeps and term[2] or '', keeps and term[3] or nil}
end

