-- See drain_peek.lua.
local amount, owes_nothing = a, hi + lo + n == 0
if owes_nothing and first then
  -- What the first charge leaves, it leaves of each key that owes nothing.
  state, hi, lo = first, first_hi, first_lo
else
  if not one then one = 2 ^ select(2, frexp(amount)) end
  local mark = 0
  if one <= 33554432 then
    if not tick then
      local cycle = 70368744177664 / one
      local rest = now_hi < 9007199 and fmod(now, cycle) or rest_of(now_hi, now_lo, cycle)
      tick = floor(rest / 131072) * 8 * one
    end
    local many = 7
    if not (moved or owes_nothing) then
      local low = stamp % (8 * one)
      local passed = (tick - (stamp - low)) % 4294967296
      if passed == 0 then
        many = low / one + 1
        if many > 7 then many = 7 end
      elseif passed < 2147483648 then
        many = 0
      end
    end
    mark = tick + many * one
  end
  hi, lo, n = hi + e + now_hi, lo + f + now_lo, n + g
  if n >= amount then lo, n = lo + 1, n - amount end
  if n > 0 then lo, n = lo + 1, amount - n end
  while lo >= 1e9 do
    hi, lo = hi + 1, lo - 1e9
  end
  -- No instant is further off that leaves room for an amount: 2^63 µs.
  if hi > 9223372036 or (hi == 9223372036 and lo >= 854775808) then mark, amount = 0, 0 end
  state = pack('<I6I4I4I4', hi, lo, mark + n, amount)
  if owes_nothing then first, first_hi, first_lo = state, hi, lo end
end
