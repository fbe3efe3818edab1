package redisretry

import "github.com/redis/go-redis/v9"

// serverNow sets now, in milliseconds, and now_us, both by the clock of the server. A due time is rounded up and now is
// cut, so that no message is early.
const serverNow = `
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)
`

// The keys of a return topic. The scores of due and index are milliseconds of the server's clock.
//
//	KEYS[1] due       sorted set: ID of a message, when it is due or its lease ends
//	KEYS[2] messages  hash: ID, the message
//	KEYS[3] owners    hash: ID of a message in flight, the token of its lease
//	KEYS[4] index     sorted set: return topic, its lowest score. Return topics with the same hash tag share it
//	ARGV[1] the return topic
//
// Each script leaves the index exact. Those of many messages have few commands, because each costs the server as much
// as what it does.
const setIndex = `
local function index()
	local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
	if first[2] then
		redis.call('ZADD', KEYS[4], first[2], ARGV[1])
		return tonumber(first[2])
	end
	redis.call('ZREM', KEYS[4], ARGV[1])
end
`

// putScript stores messages: for each its ID, the delay in microseconds, and itself. A message whose ID is there is not
// put again.
var putScript = redis.NewScript(serverNow + setIndex + `
for i = 2, #ARGV, 3 do
	redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
	redis.call('ZADD', KEYS[1], 'NX', math.ceil((now_us + ARGV[i + 1]) / 1000), ARGV[i])
end
index()
return 1
`)

// whenFull lets a script write to a server that is over maxmemory: Redis refuses a script's first write, and no later
// one. What waits must come back there, or the memory never gets less.
const whenFull = `
redis.call('HDEL', KEYS[3], '')
`

// takeScript leases up to ARGV[2] messages that are due, for ARGV[3] milliseconds, with the token ARGV[4]. It returns
// the milliseconds until the next one is due, -1 where there is none, and then the IDs and messages.
var takeScript = redis.NewScript(serverNow + setIndex + whenFull + `
local out, due, owned, gone = {-1}, {}, {}, {}
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])
local messages = ids[1] and redis.call('HMGET', KEYS[2], unpack(ids)) or {}
for i, id in ipairs(ids) do
	if messages[i] then
		due[#due + 1], due[#due + 2] = now + ARGV[3], id
		owned[#owned + 1], owned[#owned + 2] = id, ARGV[4]
		out[#out + 1], out[#out + 2] = id, messages[i]
	else
		gone[#gone + 1] = id
	end
end
if due[1] then
	redis.call('ZADD', KEYS[1], unpack(due))
	redis.call('HSET', KEYS[3], unpack(owned))
end
if gone[1] then
	redis.call('ZREM', KEYS[1], unpack(gone))
	redis.call('HDEL', KEYS[3], unpack(gone))
end
local first = index()
if first then
	out[1] = math.max(0, first - now)
end
return out
`)

// deleteScript deletes messages: their IDs.
var deleteScript = redis.NewScript(setIndex + `
redis.call('ZREM', KEYS[1], unpack(ARGV, 2))
redis.call('HDEL', KEYS[2], unpack(ARGV, 2))
redis.call('HDEL', KEYS[3], unpack(ARGV, 2))
index()
return 1
`)

// renewScript renews leases, for ARGV[2] milliseconds: for each the ID and the token. It leaves those that another
// reader has, and returns the places of the others.
var renewScript = redis.NewScript(serverNow + setIndex + whenFull + `
local held = {}
for i = 3, #ARGV, 2 do
	if redis.call('HGET', KEYS[3], ARGV[i]) == ARGV[i + 1] then
		redis.call('ZADD', KEYS[1], 'XX', now + ARGV[2], ARGV[i])
		held[#held + 1] = (i - 1) / 2
	end
end
index()
return held
`)

// giveBackScript ends leases: for each the ID and the token.
var giveBackScript = redis.NewScript(serverNow + setIndex + whenFull + `
for i = 2, #ARGV, 2 do
	if redis.call('HGET', KEYS[3], ARGV[i]) == ARGV[i + 1] then
		redis.call('ZADD', KEYS[1], 'XX', now, ARGV[i])
		redis.call('HDEL', KEYS[3], ARGV[i])
	end
end
index()
return 1
`)

// dueScript returns the return topics of indexes that have messages that are due, and the members of sets of what was
// given back. KEYS are pairs of both.
var dueScript = redis.NewScript(serverNow + `
local out = {}
for i = 1, #KEYS, 2 do
	for _, topic in ipairs(redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', now)) do
		out[#out + 1] = topic
	end
	for _, reader in ipairs(redis.call('SMEMBERS', KEYS[i + 1])) do
		out[#out + 1] = reader
	end
end
return out
`)

// The scripts of a stream: KEYS[1] is the stream, ARGV[1] the consumer group, ARGV[2] the consumer.

// claimScript takes over up to ARGV[5] entries that have been idle for ARGV[3] milliseconds, from the cursor ARGV[4]
// on. It returns the next cursor, the number of entries in flight in the group, and the entries. One that was deleted
// from the stream is acknowledged: no consumer can get it any more.
var claimScript = redis.NewScript(`
local claimed = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'COUNT', ARGV[5], 'JUSTID')
local out = {claimed[1], 0}
for _, id in ipairs(claimed[2]) do
	local entry = redis.call('XRANGE', KEYS[1], id, id)
	if entry[1] then
		out[#out + 1] = entry[1]
	else
		redis.call('XACK', KEYS[1], ARGV[1], id)
	end
end
out[2] = redis.call('XPENDING', KEYS[1], ARGV[1])[1]
return out
`)

// holdScript makes entries ARGV[4...] of the consumer idle since ARGV[3] milliseconds, without those that another
// consumer has taken over. It returns the places of the entries that it has changed.
var holdScript = redis.NewScript(`
local held = {}
for i = 4, #ARGV do
	if redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])[1] then
		redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'JUSTID')
		held[#held + 1] = i - 3
	end
end
return held
`)

// leaveScript deletes the consumer, and those that have been idle for ARGV[3] milliseconds, where they have nothing in
// flight: with a consumer, its entries in flight would be gone. ARGV[2] may be empty.
var leaveScript = redis.NewScript(`
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
	local consumer = {}
	for i = 1, #flat, 2 do
		consumer[flat[i]] = flat[i + 1]
	end
	if consumer['pending'] == 0 and (consumer['name'] == ARGV[2] or consumer['idle'] > tonumber(ARGV[3])) then
		redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer['name'])
	end
end
return 1
`)

// A lock is a key with a token. Only the owner of the token renews or removes it.
var (
	// lockScript returns 1 where the lock is free or has the token already: the answer to a try before can be lost.
	lockScript = redis.NewScript(`
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
	return 1
elseif redis.call('GET', KEYS[1]) == ARGV[1] then
	return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
`)
	renewLockScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then
	return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
`)
	unlockScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then
	return redis.call('DEL', KEYS[1])
end
return 0
`)
)
