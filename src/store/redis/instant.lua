-- Instants and spans, exact beyond the 2^53 of Lua's numbers: (hi, lo) is hi * 1e9 + lo µs, lo
-- under 1e9, and n / of a µs more where a bucket counts fractions.

local KEYS, ARGV = KEYS, ARGV
local call, floor, ceil, fmod, frexp = redis.call, math.floor, math.ceil, math.fmod, math.frexp
local pack, unpack_from = struct.pack, struct.unpack
local byte, char, format, sub_string = string.byte, string.char, string.format, string.sub

-- What a key holds, or a log for each entry: an instant, and two counts under 2^32.
local STATE, SIZE = '<I6I4I4I4', 18

-- The present instant: one for all that is decided here.
local now_hi, now_lo
-- By how much Redis' own clock, in ms, is ahead of it.
local shift = 0

-- (hi, lo) modulo m, of less than 2^45. `%` would round; fmod is exact.
local function rest_of(hi, lo, m)
  if hi < 9007199 then return fmod(hi * 1e9 + lo, m) end
  -- hi * 1e9 in steps that stay under 2^53
  local rest = fmod(hi, m)
  rest = fmod(fmod(fmod(fmod(rest * 250, m) * 250, m) * 160, m) * 100, m)
  return fmod(rest + fmod(lo, m), m)
end

-- What instants and spans are counted with: made for who counts much, as a call pays for each function that it
-- makes.
local plus, add, sub, more, apart, window_start, divide
local function arithmetic()
  if plus then return end

  -- (hi, lo) + span, which may be negative, of less than 2^53.
  function plus(hi, lo, span)
    lo = lo + span
    local carry = floor(lo / 1e9)
    return hi + carry, lo - carry * 1e9
  end

  -- (ah, al, an) + (bh, bl, bn), in parts of a µs.
  function add(ah, al, an, bh, bl, bn, parts)
    local hi, lo, n = ah + bh, al + bl, an + bn
    if n >= parts then lo, n = lo + 1, n - parts end
    if lo >= 1e9 then hi, lo = hi + 1, lo - 1e9 end
    return hi, lo, n
  end

  -- (ah, al, an) - (bh, bl, bn); hi is negative where the difference is.
  function sub(ah, al, an, bh, bl, bn, parts)
    local hi, lo, n = ah - bh, al - bl, an - bn
    if n < 0 then lo, n = lo - 1, n + parts end
    if lo < 0 then hi, lo = hi - 1, lo + 1e9 end
    return hi, lo, n
  end

  -- (ah, al, an) > (bh, bl, bn)
  function more(ah, al, an, bh, bl, bn)
    if ah ~= bh then return ah > bh end
    if al ~= bl then return al > bl end
    return an > bn
  end

  -- (ah, al) - (bh, bl) as a number: exact under 2^53, and never on the wrong side of anything less.
  function apart(ah, al, bh, bl)
    return (ah - bh) * 1e9 + (al - bl)
  end

  -- The instant at which the window of `width` began that holds `now`.
  function window_start(width)
    return plus(now_hi, now_lo, -rest_of(now_hi, now_lo, width))
  end

  -- floor(a * b / c) and the remainder, for a < 2^36 and b, c < 2^45.
  function divide(a, b, c)
    local product = a * b
    if product < 9007199254740992 then
      local rest = fmod(product, c)
      return (product - rest) / c, rest
    end
    local quotient, rest, digit = 0, 0, 1073741824
    while digit >= 1 do
      local taken = floor(a / digit)
      a = a - taken * digit
      local sum = rest * 64 + taken * b
      rest = fmod(sum, c)
      quotient = quotient * 64 + (sum - rest) / c
      digit = digit / 64
    end
    return quotient, rest
  end
end

-- The millisecond of Redis' clock at which (hi, lo) has passed: absolute, as spans that a script
-- works out start later than those that Redis counts from. Nothing is kept beyond the year 33,658.
-- Keys that are charged together often vanish together.
local last_ms, last_expiry
local function expiry(hi, lo)
  local ms = hi * 1e6 + ceil(lo / 1000) + shift
  if ms > 1e15 then ms = 1e15 end
  if ms ~= last_ms then last_ms, last_expiry = ms, format('%d', ms) end
  return last_expiry
end

-- What a key holds: an instant (0 at first) and two counts, and the bytes themselves.
local function read(key)
  local raw = call('GET', key)
  if not raw then return '', 0, 0, 0, 0 end
  if #raw ~= SIZE then error({ err = 'UNREADABLE ' .. key .. ' holds something else: delete it' }) end
  return raw, unpack_from(STATE, raw)
end

-- Writes what a key holds, to be forgotten at (until_hi, until_lo).
local function write(key, hi, lo, a, b, until_hi, until_lo)
  call('SET', key, pack(STATE, hi, lo, a, b), 'PXAT', expiry(until_hi, until_lo))
end
