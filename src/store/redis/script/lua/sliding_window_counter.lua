-- The sliding window counter (tag `c`), as src/algorithm/sliding_window_counter.rs.
--
-- A key holds the end of the window after its own, at which both counts cease to count, and two counts: of the window
-- before its own, and of its own.

local load, now_hi, now_lo = ...
local keys = load('key')
local instant = load('instant')
local add_span, difference, mul_div = instant.add_span, instant.difference, instant.mul_div
local max, unpack = math.max, struct.unpack

-- Reads the arguments of a charge from a request: cost, limit, period in µs, and 1 to round up or 0 to round down.
local function parse(text, at)
  local cost, limit, period, rounding, next_at = unpack('<dddd', text, at)
  local window_hi, window_lo = instant.window_start(now_hi, now_lo, period)
  local charge = {
    cost = cost,
    limit = limit,
    period = period,
    rounding = rounding,
    window_hi = window_hi,
    window_lo = window_lo,
    start_hi = 0,
    start_lo = 0,
    previous = 0,
    current = 0,
    is_held = false,
  }
  return charge, next_at
end

-- Reads a key. Sets the start of the present window, and the counts of that and of the previous one. Returns the key's
-- state, and the time since the start of the window.
local function view(charge, key)
  local state, hi, lo, previous, current = keys.read(key)
  local start_hi, start_lo, period = charge.window_hi, charge.window_lo, charge.period
  local elapsed = difference(now_hi, now_lo, start_hi, start_lo)
  local ahead = difference(hi, lo, start_hi, start_lo)
  charge.is_held = false
  if ahead <= 0 then
    previous, current = 0, 0
  elseif ahead <= period then
    previous, current = current, 0
  else
    charge.is_held = true
    if ahead > 2 * period then
      -- A later window, after the clock has stepped back: time stands still until that begins.
      start_hi, start_lo = add_span(hi, lo, -2 * period)
      elapsed = 0
    end
  end
  charge.start_hi, charge.start_lo, charge.previous, charge.current = start_hi, start_lo, previous, current
  return state, elapsed
end

-- Writes the counts of the window that `view` has found, and of the one before.
local function store(charge, key, previous, current)
  if current == 0 and previous == 0 then return redis.call('DEL', key) end
  local periods = 2
  -- Nothing in the window: the previous one is stored as if it were the current one, which expires earlier.
  if current == 0 then previous, current, periods = 0, previous, 1 end
  local hi, lo = add_span(charge.start_hi, charge.start_lo, periods * charge.period)
  local state = keys.encode(hi, lo, previous, current)
  if charge.is_held and periods == 2 then return keys.overwrite(key, '0', state) end
  keys.write(key, state, hi, lo)
end

-- Returns whether there is room for a charge, and the key's state.
local function peek(charge, key)
  local state, elapsed = view(charge, key)
  local weighted, rest = 0, 0
  if charge.previous > 0 then
    weighted, rest = mul_div(charge.previous, charge.period - elapsed, charge.period)
    if rest > 0 then weighted = weighted + charge.rounding end
  end
  return weighted + charge.current + charge.cost <= charge.limit, state
end

-- Charges the window that `peek` has found.
local function commit(charge, key)
  store(charge, key, charge.previous, charge.current + charge.cost)
end

-- Refunds a charge. The mark is the instant at which the charged window ceases to count.
local function refund(charge, key, mark_hi, mark_lo)
  local state = view(charge, key)
  local previous, current = charge.previous, charge.current
  local marked_hi, marked_lo = add_span(mark_hi, mark_lo, -2 * charge.period)
  local age = difference(charge.start_hi, charge.start_lo, marked_hi, marked_lo)
  if state == '' then return end
  if age == 0 then
    store(charge, key, previous, max(current - charge.cost, 0))
  elseif age == charge.period then
    store(charge, key, max(previous - charge.cost, 0), current)
  end
end

return { parse = parse, peek = peek, commit = commit, refund = refund }
