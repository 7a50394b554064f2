-- What the scripts share. KEYS: lease, term.

-- Which data set this is: an id that a restart or a promotion of the server changes. An error where that cannot be
-- told, or where so many replicas are attached that half of those that strict counts on would not be half of all.
local function lineage(replicas)
  local info = redis.pcall('INFO', 'replication')
  local id = type(info) == 'string' and string.match(info, 'master_replid:(%w+)')
  if not id then
    return redis.error_reply('NOLINEAGE strict needs master_replid of INFO replication, which cannot be read here: '
      .. (type(info) == 'table' and info.err or 'this server does not tell it'))
  end
  -- One that has come back over another connection may still be listed with the old one.
  local attached, count = {}, 0
  for replica in string.gmatch(info, 'slave%d+:(ip=[^,]*,port=%d+)') do
    if not attached[replica] then attached[replica], count = true, count + 1 end
  end
  if count > tonumber(replicas) then
    return redis.error_reply('SURPLUS ' .. count .. ' replicas are attached to this server, and strict counts on '
      .. replicas .. '; tell all instances of the group the right number, or detach what is too many')
  end
  return id
end

-- The answer that somebody has the lease. A holder that keeps no term (a Go instance) must not be given the
-- token of an earlier one, and what is parked has no leader.
local function held(holder)
  local term = redis.call('HMGET', KEYS[2], 'holder', 'token', 'replicas', 'longest')
  local left = redis.call('PTTL', KEYS[1])
  local keeps = term[1] == holder and string.sub(holder, 1, 5) ~= 'hold/'
  if not keeps then return {'held', holder, left, ''} end
  return {'held', holder, left, term[2] or '', term[3] or nil, term[4] or nil}
end

