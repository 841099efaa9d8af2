-- The twin of drain.rs. A key holds the instant at which its debt is paid, in whole µs, by how many
-- 1/amount of a µs that is too late, with the stamp of the last charge above it, and the amount.
--
-- Debts are counted in the time that it takes to pay them, to the 1/amount of a µs. So what a cost
-- adds and what leaves room for it are spans that the caller has worked out.

-- stamp.rs says of a stamp what its numbers are: ticks of 131072 µs, of which 2^29 / one make a round (2^46 µs for
-- one token), and at most 7 charges more, in units of `one`, what the bits above those count that the amount
-- takes. Above 2^25 there is no room for one.

local function peek(charge)
  local raw, hi, lo, n = call('GET', charge.key), 0, 0, 0
  if not raw then
    raw = ''
  else
    if #raw ~= 18 then read(charge.key) end
    local amount, one, written, stamp = charge[2], charge.one
    if not one then
      one = 2 ^ select(2, frexp(amount))
      charge.one = one
    end
    hi, lo, n, written = unpack_from('<I6I4I4I4', raw)
    local rest = n % one
    if written == amount and hi < 9223372036 and rest <= amount then
      -- Nearly always: what is below comes to the same, whatever there is.
      stamp = n - rest
      hi, lo, n = hi - now_hi, lo - now_lo, 0
      if rest > 0 then lo, n = lo - 1, amount - rest end
      if lo < 0 then hi, lo = hi - 1, lo + 1e9 end
      if hi < 0 then hi, lo, n = 0, 0, 0 end
    else
      if not drains then error(2, 0) end
      hi, lo, n, stamp, written = drains.known(amount, hi, lo, n, written)
      hi, lo, n = drains.owed(amount, hi, lo, n, written)
      charge.moved = written ~= amount
    end
    charge.stamp = stamp
  end
  charge.hi, charge.lo, charge.n = hi, lo, n
  local room = charge[3]
  if hi ~= room then return hi < room, raw end
  room = charge[4]
  if lo ~= room then return lo < room, raw end
  return n <= charge[5], raw
end

local function commit(charge)
  local amount, hi, lo, n = charge[2], charge.hi, charge.lo, charge.n
  local owes_nothing = hi + lo + n == 0
  -- What the first charge leaves, it leaves of each key that owes nothing.
  if owes_nothing and charge.first then return call('SET', charge.key, charge.first, 'PXAT', charge.expiry) end
  local one, stamp = charge.one or 2 ^ select(2, frexp(amount)), 0
  if one <= 33554432 then
    local tick, many = charge.tick, 7
    if not tick then
      tick = floor(rest_of(now_hi, now_lo, 70368744177664 / one) / 131072) * 8 * one
      charge.one, charge.tick = one, tick
    end
    if not (charge.moved or owes_nothing) then
      local before = charge.stamp
      local low = before % (8 * one)
      local apart = (tick - (before - low)) % 4294967296
      if apart == 0 then
        many = low / one + 1
        if many > 7 then many = 7 end
      elseif apart < 2147483648 then
        many = 0
      end
    end
    stamp = tick + many * one
  end
  hi, lo, n = hi + charge[6] + now_hi, lo + charge[7] + now_lo, n + charge[8]
  if n >= amount then lo, n = lo + 1, n - amount end
  if n > 0 then lo, n = lo + 1, amount - n end
  while lo >= 1e9 do
    hi, lo = hi + 1, lo - 1e9
  end
  -- No instant is further off that leaves room for an amount: 2^63 µs.
  if hi > 9223372036 or (hi == 9223372036 and lo >= 854775808) then stamp, amount = 0, 0 end
  local state, vanishes = pack('<I6I4I4I4', hi, lo, stamp + n, amount), expiry(hi, lo)
  if owes_nothing then charge.first, charge.expiry = state, vanishes end
  call('SET', charge.key, state, 'PXAT', vanishes)
end

rule = { numbers = '<dddddddd', peek = peek, commit = commit }
