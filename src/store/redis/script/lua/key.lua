-- The state of a key: 18 bytes, which are an instant (hi, lo) and two counts under 2^32. Logs are a list of these.
--
-- `clock_ahead` is added to expiries, in ms: see decide.lua.

local _, _, _, clock_ahead = ...
local call, pack, unpack = redis.call, struct.pack, struct.unpack

local FORMAT = '<I6I4I4I4'

local last_hi, last_lo, last_expiry

-- Raises an error if `state`, read from `key`, has another length than a state.
local function check(key, state)
  if #state ~= 18 then error({ err = 'UNREADABLE ' .. key .. ' holds something else: delete it' }) end
end

-- Returns the bytes of a state.
local function encode(hi, lo, first, second)
  return pack(FORMAT, hi, lo, first, second)
end

-- Returns the instant and the two counts of a state.
local function decode(state)
  return unpack(FORMAT, state)
end

-- Returns the state that `key` holds, its instant and its two counts: an empty string and zeros if there is none.
local function read(key)
  local state = call('GET', key)
  local hi, lo, first, second = 0, 0, 0, 0
  if not state then
    state = ''
  else
    check(key, state)
    hi, lo, first, second = unpack(FORMAT, state)
  end
  return state, hi, lo, first, second
end

-- Returns the millisecond of Redis' clock at which an instant is over, as a string. Time to live is absolute, because
-- a relative one would start later than the instant that a script has worked with. It ends with the year 33,658.
local function expiry(hi, lo)
  if hi ~= last_hi or lo ~= last_lo then
    local ms = hi * 1e6 + math.ceil(lo / 1000) + clock_ahead
    if ms > 1e15 then ms = 1e15 end
    last_hi, last_lo, last_expiry = hi, lo, string.format('%d', ms)
  end
  return last_expiry
end

-- Writes the state of `key`, which expires at an instant.
local function write(key, state, expires_hi, expires_lo)
  local ms = expiry(expires_hi, expires_lo)
  call('SET', key, state, 'PXAT', ms)
end

-- Writes bytes of the state of a key that holds one, from `offset` on. The key keeps its expiry. (`SET` with `KEEPTTL`
-- would return a table.)
local function overwrite(key, offset, bytes)
  call('SETRANGE', key, offset, bytes)
end

-- Sets when `key` expires.
local function expire(key, expires_hi, expires_lo)
  local ms = expiry(expires_hi, expires_lo)
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
