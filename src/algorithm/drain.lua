-- The twin of drain.rs. A key holds the instant at which its debt is paid, in whole µs, and by how
-- many 1/amount of a µs that is too late.
--
-- Debts are counted in the time that it takes to pay them, to the 1/amount of a µs. So what a cost
-- adds and what leaves room for it are spans that the caller has worked out.
local function drain()
  local rule = { numbers = '<ddddddddddd' }

  -- What is owed on a debt that is paid at (hi, lo), less rest.
  local function owed(charge, hi, lo, rest)
    local amount, most_hi, most_lo, most_n = charge[2], charge[3], charge[4], charge[5]
    local n = 0
    if rest > 0 then
      local whole = ceil(rest / amount)
      hi, lo = plus(hi, lo, -whole)
      n = whole * amount - rest
    end
    hi, lo, n = sub(hi, lo, n, now_hi, now_lo, 0, amount)
    if hi < 0 then return 0, 0, 0 end
    -- Left by a clock that stepped back by far: all there can be is owed, and is paid from now on.
    if
      more(hi, lo, n, most_hi, most_lo, most_n)
      and more(hi, lo, n, add(most_hi, most_lo, most_n, most_hi, most_lo, most_n, amount))
    then
      return most_hi, most_lo, most_n
    end
    return hi, lo, n
  end

  local function remember(key, amount, hi, lo, n)
    hi, lo = add(hi, lo, 0, now_hi, now_lo, 0, amount)
    local rest = 0
    if n > 0 then
      hi, lo = plus(hi, lo, 1)
      rest = amount - n
    end
    write(key, hi, lo, rest, 0, hi, lo)
  end

  function rule.peek(charge)
    local raw, hi, lo, rest = read(charge.key)
    charge.held = raw
    charge.hi, charge.lo, charge.n = owed(charge, hi, lo, rest)
    return not more(charge.hi, charge.lo, charge.n, charge[6], charge[7], charge[8])
  end

  function rule.commit(charge)
    local amount = charge[2]
    remember(charge.key, amount, add(charge.hi, charge.lo, charge.n, charge[9], charge[10], charge[11], amount))
  end

  function rule.refund(charge, mark_hi, mark_lo, mark_rest)
    local amount = charge[2]
    local raw, hi, lo, rest = read(charge.key)
    if raw == '' then return end
    local n, unpaid_hi, unpaid_lo, unpaid_n
    hi, lo, n = owed(charge, hi, lo, rest)
    unpaid_hi, unpaid_lo, unpaid_n = owed(charge, mark_hi, mark_lo, mark_rest)
    if more(unpaid_hi, unpaid_lo, unpaid_n, charge[9], charge[10], charge[11]) then
      unpaid_hi, unpaid_lo, unpaid_n = charge[9], charge[10], charge[11]
    end
    if not more(hi, lo, n, unpaid_hi, unpaid_lo, unpaid_n) then return call('DEL', charge.key) end
    remember(charge.key, amount, sub(hi, lo, n, unpaid_hi, unpaid_lo, unpaid_n, amount))
  end

  return rule
end
