-- The sliding window counter (tag `c`), as src/algorithm/counter.rs.
--
-- A key expires at the end of the window after its own, at which both of its counts cease to count: that of its window,
-- and that of the window before.

local load, now = ...
local keys = load('key')
local mul_div = load('arithmetic').mul_div
local fmod, max, unpack = math.fmod, math.max, struct.unpack

-- Reads the arguments of a charge from a request: cost, limit, period in µs, and 1 to round up or 0 to round down.
local function parse(text, at)
  local cost, limit, period, rounding, next_at = unpack('<dddd', text, at)
  local charge = {
    cost = cost,
    limit = limit,
    period = period,
    rounding = rounding,
    window = now - fmod(now, period),
    start = 0,
    previous = 0,
    current = 0,
    is_held = false,
  }
  return charge, next_at
end

-- Reads a key. Sets the start of the present window, and the counts of that and of the previous one. Returns the key's
-- state, and the time since the start of the window.
local function view(charge, key)
  local state, expires, _, current, previous = keys.read(key)
  local start, period = charge.window, charge.period
  local ahead = expires - start
  charge.is_held = false
  if ahead <= 0 then
    previous, current = 0, 0
  elseif ahead <= period then
    previous, current = current, 0
  else
    charge.is_held = true
    -- A later window, after the clock has stepped back: time stands still until that begins.
    start = max(start, expires - 2 * period)
  end
  charge.start, charge.previous, charge.current = start, previous, current
  return state, max(now - start, 0)
end

-- Writes the counts of the window that `view` has found, and of the one before.
local function store(charge, key, previous, current)
  if current == 0 and previous == 0 then return redis.call('DEL', key) end
  local periods = 2
  -- Nothing in the window: the previous one is stored as if it were the current one, which expires earlier.
  if current == 0 then previous, current, periods = 0, previous, 1 end
  local expires = charge.start + periods * charge.period
  local state = keys.encode(expires, 0, current, previous)
  if charge.is_held and periods == 2 then return keys.overwrite(key, state) end
  keys.write(key, state, expires)
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

-- Refunds a charge. The mark is the state that the charge has left.
local function refund(charge, key, mark)
  local state = view(charge, key)
  local previous, current = charge.previous, charge.current
  local age = charge.start - (keys.decode(mark) - 2 * charge.period)
  if state == '' then return end
  if age == 0 then
    store(charge, key, previous, max(current - charge.cost, 0))
  elseif age == charge.period then
    store(charge, key, max(previous - charge.cost, 0), current)
  end
end

-- Gives a charge another limit.
local function resize(charge, limit)
  charge.limit = limit
end

return { parse = parse, peek = peek, commit = commit, refund = refund, resize = resize }
