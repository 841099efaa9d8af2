-- The state of a key: 22 bytes, which are two instants in µs, the first of which is its expiry, and two counts under 2^32.
--
-- `clock_ahead` is added to expiries, in ms: see decide.lua.

local _, _, clock_ahead = ...
local call, pack, unpack = redis.call, struct.pack, struct.unpack

local FORMAT, SIZE = '<I7I7I4I4', 22

local last_instant, last_expiry

-- Raises an error if `state`, read from `key`, has another length than a state.
local function check(key, state, size)
  if #state ~= size then error({ err = 'UNREADABLE ' .. key .. ' holds something else: delete it' }) end
end

-- Returns the bytes of a state.
local function encode(expires, at, first, second)
  return pack(FORMAT, expires, at, first, second)
end

-- Returns the two instants and the two counts of a state.
local function decode(state)
  return unpack(FORMAT, state)
end

-- Returns the state that `key` holds, its instants and its counts: an empty string and zeros if there is none.
local function read(key)
  local state = call('GET', key)
  local expires, at, first, second = 0, 0, 0, 0
  if not state then
    state = ''
  else
    check(key, state, SIZE)
    expires, at, first, second = unpack(FORMAT, state)
  end
  return state, expires, at, first, second
end

-- Returns the millisecond of Redis' clock at which an instant is over, as a string. Time to live is absolute, because
-- a relative one would start later than the instant that a script has worked with.
local function expiry(instant)
  if instant ~= last_instant then
    last_instant, last_expiry = instant, string.format('%d', math.ceil(instant / 1000) + clock_ahead)
  end
  return last_expiry
end

-- Writes the state of `key`, which expires at an instant.
local function write(key, state, expires)
  local ms = expiry(expires)
  call('SET', key, state, 'PXAT', ms)
end

-- Replaces the beginning of the state of a key that holds one. The key keeps its expiry. (`SET` with `KEEPTTL` would
-- return a table.)
local function overwrite(key, bytes)
  call('SETRANGE', key, '0', bytes)
end

-- Sets when `key` expires.
local function expire(key, expires)
  local ms = expiry(expires)
  call('PEXPIREAT', key, ms)
end

return {
  encode = encode,
  decode = decode,
  check = check,
  read = read,
  write = write,
  overwrite = overwrite,
  expire = expire,
}
