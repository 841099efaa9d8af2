-- What all functions are made with: what spans are counted with, and what keys hold.
rules = {}

-- Calls what may fail, which is what is wrong then.
function guarded(act, ...)
  local ok, first, second = pcall(act, ...)
  if ok then return first, second end
  wrong = wrong or first
end

-- (hi, lo) modulo m, of less than 2^45. `%` would round; fmod is exact.
function rest_of(hi, lo, m)
  if hi < 9007199 then return fmod(hi * 1e9 + lo, m) end
  -- hi * 1e9 in steps that stay under 2^53
  local rest = fmod(hi, m)
  rest = fmod(fmod(fmod(fmod(rest * 250, m) * 250, m) * 160, m) * 100, m)
  return fmod(rest + fmod(lo, m), m)
end

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

-- See expiry.lua.
function expiry(hi, lo)
  local ms = hi * 1e6 + ceil(lo / 1000) + shift
  if ms > 1e15 then ms = 1e15 end
  return format('%d', ms)
end

-- What a key holds: an instant (0 at first) and two counts, and the bytes themselves.
function read(key)
  local raw = call('GET', key)
  if not raw then return '', 0, 0, 0, 0 end
  if #raw ~= 18 then error({ err = 'UNREADABLE ' .. key .. ' holds something else: delete it' }) end
  return raw, unpack_from('<I6I4I4I4', raw)
end

-- Writes what a key holds, to be forgotten at (until_hi, until_lo); over what was there if that was to be at
-- (was_hi, was_lo).
function write(key, hi, lo, a, b, until_hi, until_lo, was_hi, was_lo)
  local state = pack('<I6I4I4I4', hi, lo, a, b)
  if not was_hi then return call('SET', key, state, 'PXAT', expiry(until_hi, until_lo)) end
  call('SETRANGE', key, '0', state)
  if until_hi ~= was_hi or until_lo ~= was_lo then call('PEXPIREAT', key, expiry(until_hi, until_lo)) end
end
