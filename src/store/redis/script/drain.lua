-- The twin of src/algorithm/gcra.rs. A key holds the instant at which its debt is paid, in whole µs, by how many
-- 1/amount of a µs that is too late, with the stamp of the last charge above it, and the amount.
--
-- Debts are counted in the time that it takes to pay them, to the 1/amount of a µs. So what a cost
-- adds and what leaves room for it are spans that the caller has worked out: `a` is the amount, (b, c, d) what may
-- be owed, (e, f, g) what the cost adds.
--
-- src/algorithm/last_charge.rs says what the numbers of a stamp are: ticks of 131072 µs, of which 2^29 / one make a round (2^46 µs for
-- one token), and at most 7 charges more, in units of `one`, what the bits above those count that the amount
-- takes. Above 2^25 there is no room for one.
if not one then
  local _, bits = frexp(a)
  one, tick, latest = 2 ^ bits, 0, 0
  if one <= 33554432 then
    local cycle = 70368744177664 / one
    local rest = now_hi < 9007199 and now % cycle or rest_of(now_hi, now_lo, cycle)
    tick = (rest - rest % 131072) / 131072 * 8 * one
    latest = tick + 7 * one
  end
  -- Until when a debt may last that leaves room, rather than for how long.
  b, c = b + now_hi, c + now_lo
  if c >= 1e9 then b, c = b + 1, c - 1e9 end
  if noted then charge[14], charge[15], charge[16], charge[3], charge[4] = one, tick, latest, b, c end
end
-- Until when something is owed, and the stamp of the last charge, where that is known and counts.
local stamp
local n = 0
local owes_nothing = true
if raw then
  local until_hi, until_lo, detail, written = unpack_from('<I6I4I4I4', raw)
  offset = '0'
  held_hi = until_hi
  held_lo = until_lo
  hi = until_hi % 1099511627776
  lo = until_lo
  local rest = detail % one
  if written == a and hi < 9223372036 and rest <= a then
    -- Nearly always: what is below comes to the same, whatever there is.
    stamp = detail - rest
    if rest > 0 then
      n = a - rest
      lo = lo - 1
      if lo < 0 then hi, lo = hi - 1, lo + 1e9 end
    end
  else
    if not drains then wrong = 2 break end
    hi, lo, rest, stamp, written = drains.known(a, held_hi, lo, detail, written)
    hi, lo, n = drains.owed(a, hi, lo, rest, written)
    if written ~= a then
      stamp, owing = nil, owing or {}
      owing[i] = { id, a, hi, lo, n }
    end
    hi, lo = plus(hi + now_hi, lo, now_lo)
    -- At another rate it may be sooner.
    held_hi = false
  end
  if hi > now_hi or hi == now_hi and (lo > now_lo or lo == now_lo and n > 0) then owes_nothing = false end
end
if owes_nothing then
  stamp = nil
  hi = now_hi
  lo = now_lo
  n = 0
end
free = hi < b or hi == b and (lo < c or lo == c and n <= d)
if free and takes and room and cost > 0 then
  if owes_nothing and first then
    -- What the first charge leaves, it leaves of each key that owes nothing.
    if noted then first_hi, first_lo = charge[11], charge[12] end
    state = first
    hi = first_hi
    lo = first_lo
    written_hi = hi
    step = 1000
  else
    local mark = latest
    if stamp then
      if stamp < tick or stamp > latest then
        if (tick - stamp + stamp % (8 * one)) % 4294967296 < 2147483648 then mark = tick end
      elseif stamp < latest then
        mark = stamp + one
      end
    end
    hi = hi + e
    lo = lo + f
    n = n + g
    if n >= a then
      lo = lo + 1
      n = n - a
    end
    if n > 0 then
      lo = lo + 1
      n = a - n
    end
    while lo >= 1e9 do
      hi = hi + 1
      lo = lo - 1e9
    end
    if hi >= 9223372036 and (hi > 9223372036 or lo >= 854775808) then
      -- No instant is further off that leaves room for an amount: 2^63 µs.
      written_hi = hi
      step = 1000
      state = pack('<I6I4I4I4', hi, lo, n, 0)
    elseif owes_nothing then
      written_hi = hi
      step = 1000
      state = pack('<I6I4I4I4', hi, lo, mark + n, a)
      first, first_hi, first_lo = state, hi, lo
      if noted then charge[11], charge[12], charge[13] = hi, lo, state end
    else
      -- Who adds to a debt will often do so again.
      written_hi = hi + grade
      step = grain
      if written_hi == held_hi then
        -- What is before and behind this stays.
        offset = '6'
        state = pack('<I4I4', lo, mark + n)
      else
        state = pack('<I6I4I4I4', written_hi, lo, mark + n, a)
      end
    end
  end
end
