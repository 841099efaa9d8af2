-- What spans are counted with.
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
