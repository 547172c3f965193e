-- The script with which version 0.1 deletes a document in Redis.
local held = redis.call('GETRANGE', KEYS[1], 0, 19)
local version = string.match(held, '^%d+') or '0'
if version ~= ARGV[2] then return '0' end

redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('DEL', KEYS[1])
return '1'
