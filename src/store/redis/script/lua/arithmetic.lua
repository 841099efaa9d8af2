-- Exact arithmetic on products beyond the 2^53 of Lua's numbers.

local floor, fmod = math.floor, math.fmod

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

return { mul_div = mul_div }
