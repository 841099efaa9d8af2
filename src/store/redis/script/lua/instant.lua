-- Exact arithmetic on instants and spans beyond the 2^53 of Lua's numbers.
--
-- An instant or a span is (hi, lo): hi * 1e9 + lo µs, with lo from 0 to 1e9 - 1. Spans of buckets have a third part: n
-- of `parts` equal parts of a µs. A span that is known to be less than 2^53 µs is one number.

local floor, fmod = math.floor, math.fmod

-- Returns (hi, lo) + span, which may be negative.
local function add_span(hi, lo, span)
  lo = lo + span
  local carry = floor(lo / 1e9)
  return hi + carry, lo - carry * 1e9
end

-- Returns (a_hi, a_lo, a_n) + (b_hi, b_lo, b_n).
local function add(a_hi, a_lo, a_n, b_hi, b_lo, b_n, parts)
  local hi, lo, n = a_hi + b_hi, a_lo + b_lo, a_n + b_n
  if n >= parts then lo, n = lo + 1, n - parts end
  if lo >= 1e9 then hi, lo = hi + 1, lo - 1e9 end
  return hi, lo, n
end

-- Returns (a_hi, a_lo, a_n) - (b_hi, b_lo, b_n). If the difference is negative, so is its hi.
local function subtract(a_hi, a_lo, a_n, b_hi, b_lo, b_n, parts)
  local hi, lo, n = a_hi - b_hi, a_lo - b_lo, a_n - b_n
  if n < 0 then lo, n = lo - 1, n + parts end
  if lo < 0 then hi, lo = hi - 1, lo + 1e9 end
  return hi, lo, n
end

-- Returns whether (a_hi, a_lo, a_n) is greater than (b_hi, b_lo, b_n).
local function is_greater(a_hi, a_lo, a_n, b_hi, b_lo, b_n)
  if a_hi ~= b_hi then return a_hi > b_hi end
  if a_lo ~= b_lo then return a_lo > b_lo end
  return a_n > b_n
end

-- Returns (a_hi, a_lo) - (b_hi, b_lo) as one number. It is exact under 2^53; a longer span is rounded, but compares
-- correctly with any shorter one.
local function difference(a_hi, a_lo, b_hi, b_lo)
  return (a_hi - b_hi) * 1e9 + (a_lo - b_lo)
end

-- Returns (hi, lo) modulo m, for m under 2^45. (The operator `%` would round; fmod is exact.)
local function modulo(hi, lo, m)
  if hi < 9007199 then return fmod(hi * 1e9 + lo, m) end
  -- Multiplies hi by 1e9 in steps that stay under 2^53.
  local rest = fmod(hi, m)
  rest = fmod(fmod(fmod(fmod(rest * 250, m) * 250, m) * 160, m) * 100, m)
  return fmod(rest + fmod(lo, m), m)
end

-- Returns the last multiple of `width` since the epoch that is not after (hi, lo).
local function window_start(hi, lo, width)
  return add_span(hi, lo, -modulo(hi, lo, width))
end

-- Returns floor(a * b / c) and the remainder, for a < 2^36 and 63 * b + 64 * c < 2^53.
local function mul_div(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local rest = fmod(product, c)
    return (product - rest) / c, rest
  end
  -- Long division: six digits of a, of 6 bits each.
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

return {
  add_span = add_span,
  add = add,
  subtract = subtract,
  is_greater = is_greater,
  difference = difference,
  modulo = modulo,
  window_start = window_start,
  mul_div = mul_div,
}
