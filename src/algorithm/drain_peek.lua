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
hi, lo, n = 0, 0, 0
if raw then
  if not one then one = 2 ^ select(2, frexp(a)) end
  local written
  hi, lo, n, written = unpack_from('<I6I4I4I4', raw)
  local rest = n % one
  if written == a and hi < 9223372036 and rest <= a then
    -- Nearly always: what is below comes to the same, whatever there is.
    stamp = n - rest
    hi, lo, n = hi - now_hi, lo - now_lo, 0
    if rest > 0 then lo, n = lo - 1, a - rest end
    if lo < 0 then hi, lo = hi - 1, lo + 1e9 end
    if hi < 0 then hi, lo, n = 0, 0, 0 end
  else
    if not drains then wanted = 2 break end
    hi, lo, n, stamp, written = drains.known(a, hi, lo, n, written)
    hi, lo, n = drains.owed(a, hi, lo, n, written)
    moved = written ~= a
  end
end
if hi ~= b then free = hi < b elseif lo ~= c then free = lo < c else free = n <= d end
