-- The twin of drain.rs. A key holds the instant at which its debt is paid, in whole µs, and by how
-- many 1/amount of a µs that is too late.
--
-- Debts are counted in the time that it takes to pay them, to the 1/amount of a µs. So what a cost
-- adds and what leaves room for it are spans that the caller has worked out.
local function drain()
  local rule = { numbers = '<dddddddd' }

  -- What is owed on a debt that is paid at (hi, lo), less rest.
  local function owed(charge, hi, lo, rest)
    local amount, n = charge[2], 0
    if rest > 0 then
      local whole = ceil(rest / amount)
      hi, lo = plus(hi, lo, -whole)
      n = whole * amount - rest
    end
    hi, lo, n = sub(hi, lo, n, now_hi, now_lo, 0, amount)
    if hi < 0 then return 0, 0, 0 end
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
    return not more(charge.hi, charge.lo, charge.n, charge[3], charge[4], charge[5])
  end

  function rule.commit(charge)
    local amount = charge[2]
    remember(charge.key, amount, add(charge.hi, charge.lo, charge.n, charge[6], charge[7], charge[8], amount))
  end

  -- Gives back a span of what is owed on the debt that is paid at (hi, lo), less rest.
  function rule.give_back(charge, hi, lo, rest, back_hi, back_lo, back_n)
    local amount = charge[2]
    local n
    hi, lo, n = owed(charge, hi, lo, rest)
    if not more(hi, lo, n, back_hi, back_lo, back_n) then return call('DEL', charge.key) end
    remember(charge.key, amount, sub(hi, lo, n, back_hi, back_lo, back_n, amount))
  end

  -- The mark is the instant of the charge. What time has paid since, it has paid of this charge
  -- before all others: drain.rs says why.
  function rule.refund(charge, mark_hi, mark_lo)
    local raw, hi, lo, rest = read(charge.key)
    if raw == '' then return end
    local since_hi, since_lo = sub(now_hi, now_lo, 0, mark_hi, mark_lo, 0, 1)
    -- A clock that stepped back can't say what is paid.
    if since_hi < 0 then return end
    local back_hi, back_lo, back_n = sub(charge[6], charge[7], charge[8], since_hi, since_lo, 0, charge[2])
    if back_hi < 0 then back_hi, back_lo, back_n = 0, 0, 0 end
    rule.give_back(charge, hi, lo, rest, back_hi, back_lo, back_n)
  end

  return rule
end
