-- The twin of drain.rs. A key holds the instant at which its debt is paid, in whole µs, by how many
-- 1/amount of a µs that is too late, with the stamp of the last charge above it, and the amount.
--
-- Debts are counted in the time that it takes to pay them, to the 1/amount of a µs. So what a cost
-- adds and what leaves room for it are spans that the caller has worked out: `a` is the amount, (b, c, d) what may
-- be owed, (e, f, g) what the cost adds.
--
-- stamp.rs says of a stamp what its numbers are: ticks of 131072 µs, of which 2^29 / one make a round (2^46 µs for
-- one token), and at most 7 charges more, in units of `one`, what the bits above those count that the amount
-- takes. Above 2^25 there is no room for one.
if not one then
  local _, bits = frexp(a)
  one, tick = 2 ^ bits, false
  if one <= 33554432 then
    local cycle = 70368744177664 / one
    local rest = now_hi < 9007199 and now % cycle or rest_of(now_hi, now_lo, cycle)
    tick = (rest - rest % 131072) / 131072 * 8 * one
  end
  if noted then charge.one, charge.tick = one, tick end
end
-- What is owed, and the stamp of the last charge, where that is known and counts.
local stamp
local n = 0
if raw then
  local until_hi, until_lo, detail, written = unpack_from('<I6I4I4I4', raw)
  held_hi = until_hi
  held_lo = until_lo
  until_hi = until_hi % 1099511627776
  local rest = detail % one
  if written == a and until_hi < 9223372036 and rest <= a then
    -- Nearly always: what is below comes to the same, whatever there is.
    stamp = detail - rest
    hi = until_hi - now_hi
    lo = until_lo - now_lo
    if rest > 0 then
      lo = lo - 1
      n = a - rest
    end
    if lo < 0 then
      hi = hi - 1
      lo = lo + 1e9
    end
    if hi < 0 then hi, lo, n = 0, 0, 0 end
  else
    if not drains then wrong = 2 break end
    until_hi, until_lo, rest, stamp, written = drains.known(a, held_hi, until_lo, detail, written)
    hi, lo, n = drains.owed(a, until_hi, until_lo, rest, written)
    if written ~= a then
      stamp, owing = nil, owing or {}
      owing[i] = { id, a, hi, lo, n }
    end
  end
else
  hi = 0
  lo = 0
end
free = hi < b or hi == b and (lo < c or lo == c and n <= d)
if takes and free and room and cost > 0 then
  local owes_nothing = hi + lo == 0 and n == 0
  if owes_nothing and first then
    -- What the first charge leaves, it leaves of each key that owes nothing.
    if noted then first_hi, first_lo = charge[11], charge[12] end
    state = first
    hi = first_hi
    lo = first_lo
    written_hi = hi
    step = 1000
  else
    local amount = a
    local mark
    if not tick then
      mark = 0
    elseif stamp and not owes_nothing then
      local ticked = 8 * one
      local low = stamp % ticked
      local before = stamp - low
      if before == tick then
        mark = stamp
        low = low + one
        if low < ticked then mark = mark + one end
      elseif (tick - before) % 4294967296 < 2147483648 then
        mark = tick
      else
        mark = tick + 7 * one
      end
    else
      mark = tick + 7 * one
    end
    hi = hi + e + now_hi
    lo = lo + f + now_lo
    n = n + g
    if n >= amount then
      lo = lo + 1
      n = n - amount
    end
    if n > 0 then
      lo = lo + 1
      n = amount - n
    end
    while lo >= 1e9 do
      hi = hi + 1
      lo = lo - 1e9
    end
    -- No instant is further off that leaves room for an amount: 2^63 µs.
    if hi >= 9223372036 and (hi > 9223372036 or lo >= 854775808) then mark, amount = 0, 0 end
    if owes_nothing or amount == 0 then
      written_hi = hi
      step = 1000
    else
      -- Who adds to a debt will often do so again.
      written_hi = hi + grade
      step = grain
    end
    state = pack('<I6I4I4I4', written_hi, lo, mark + n, amount)
    if owes_nothing then
      first, first_hi, first_lo = state, hi, lo
      if noted then charge.first, charge[11], charge[12] = state, hi, lo end
    end
  end
end
