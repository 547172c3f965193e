-- The script with which version 0.2.0 swaps a document in Redis.
local held = redis.call('GETRANGE', KEYS[1], 0, 19)
local version = string.match(held, '^%d+') or '0'
if version ~= ARGV[2] then return '0' end

local name, expires_at, text, ends = ARGV[1], ARGV[3], ARGV[4], ARGV[5]
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local floor = tonumber(redis.call('GET', KEYS[4]) or '0')
local new = string.format('%.0f', math.max(micros, floor + 1))
redis.call('SET', KEYS[4], new)

local ended = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf',
    string.format('(%.0f', math.floor(micros / 1000)), 'LIMIT', 0, 50)
if #ended > 0 then
    redis.call('ZREM', KEYS[2], unpack(ended))
    redis.call('ZREM', KEYS[3], unpack(ended))
end

redis.call('ZADD', KEYS[2], 0, name)
if ends == '' then
    redis.call('ZREM', KEYS[3], name)
    redis.call('SET', KEYS[1], new .. ' ' .. expires_at .. ' ' .. text)
else
    redis.call('ZADD', KEYS[3], ends, name)
    redis.call('SET', KEYS[1], new .. ' ' .. expires_at .. ' ' .. text)
    redis.call('PEXPIREAT', KEYS[1], ends)
end
return new
