-- The sliding window counter, as src/algorithm/counter.rs.
--
-- A key expires at the end of the window after its own, at which both of its counts cease to count: that of its window,
-- and that of the window before. The amount is the weight of the window before, in percent.

-- Returns the start of the present window, and the counts of the previous one and of that.
local function view(now, span, expires, current, previous)
  local start = now - now % span
  if expires <= start then return start, 0, 0 end
  if expires <= start + span then return start, current, 0 end
  -- A later window, after the clock has stepped back: time stands still until that begins.
  return math.max(start, expires - 2 * span), previous, current
end

-- Returns whether there is room for the cost, and what `view` finds.
local function peek(now, cost, hard, amount, span, expires, _, current, previous)
  local start
  start, previous, current = view(now, span, expires, current, previous)
  local weighted, rest = mul_div(previous, span - math.max(now - start, 0), span)
  if amount < 100 then
    -- The percentage of the whole part, and of the rest.
    local more, less = mul_div(amount, rest, span)
    local hundredths = weighted * amount + more
    rest = hundredths % 100 + less
    weighted = (hundredths - hundredths % 100) / 100
  end
  if rest > 0 and tag == ScriptTag.CounterUp then weighted = weighted + 1 end
  return weighted + current + cost <= hard, start, previous, current
end

-- Returns the state of two windows.
local function state(start, span, previous, current)
  if current > 0 then return start + 2 * span, 0, current, previous, 0 end
  -- Nothing in the window: the previous one is stored as if it were the current one, which expires earlier.
  if previous > 0 then return start + span, 0, previous, 0, 0 end
  return 0
end

-- Returns the state after a charge of the windows that `peek` has found.
local function charge(now, cost, hard, amount, span, start, previous, current)
  return state(start, span, previous, current + cost)
end

if not is_refund then return peek, charge end

-- Refunds a charge in its window, as the state has it. The mark is the state that the charge has left.
local function refund(now, cost, hard, amount, span, expires, _, current, previous, marked)
  local start = expires - 2 * span
  if expires <= now then return end
  if marked == expires then return state(start, span, previous, math.max(current - cost, 0)) end
  if marked + span == expires then return state(start, span, math.max(previous - cost, 0), current) end
end

return peek, charge, refund
