-- GCRA: continuous token buckets and leaky buckets (tag `d`), and queues (tag `q`), as src/algorithm/gcra.rs.
--
-- A key holds the theoretical arrival time (TAT), rounded up to µs; by how many 1/amount of a µs it was rounded up, and
-- above those bits the tick of the last charge (as src/algorithm/last_charge.rs); and the amount. The upper bits of the
-- instant's hi are the index of the step, the TTL quantum, to which the key's expiry was rounded up.
--
-- Here the TAT is (hi, lo, n): n of `amount` equal parts of a µs after (hi, lo).

local load, now_hi, now_lo = ...
local keys = load('key')
local read, write, overwrite, encode = keys.read, keys.write, keys.overwrite, keys.encode
local frexp, pack, unpack = math.frexp, struct.pack, struct.unpack

local QUEUE = 113 -- q
local QUANTUM_INDEX_UNIT = 1099511627776
-- From 2^63 µs on, a state has no room for an amount and a tick.
local FAR_HI, FAR_LO = 9223372036, 854775808
local TICK, CYCLE, MAX_TICK_UNIT = 131072, 70368744177664, 33554432

-- Returns the unit of the bits above the rounding, and the present tick with the lowest and the highest count.
local function tick_of(amount)
  local _, bits = frexp(amount)
  local unit, tick, last_in_tick = 2 ^ bits, 0, 0
  if unit <= MAX_TICK_UNIT then
    local cycle = CYCLE / unit
    local rest
    if now_hi < 9007199 then
      -- Exact, as the cycle is a power of two.
      rest = (now_hi * 1e9 + now_lo) % cycle
    else
      rest = load('instant').modulo(now_hi, now_lo, cycle)
    end
    tick = (rest - rest % TICK) / TICK * 8 * unit
    last_in_tick = tick + 7 * unit
  end
  return unit, tick, last_in_tick
end

-- Reads the arguments of a charge from a request: cost and amount; the longest backlog that leaves room for the cost,
-- and the time in which the cost drains, in three parts each; the index of the TTL quantum, and the quantum in µs.
local function parse(text, at, tag)
  local cost, amount, room_hi, room_lo, room_n, cost_hi, cost_lo, cost_n, quantum_index, quantum
  cost, amount, room_hi, room_lo, room_n, cost_hi, cost_lo, cost_n, quantum_index, quantum, at =
    unpack('<dddddddddd', text, at)
  local latest_hi, latest_lo = room_hi + now_hi, room_lo + now_lo
  if latest_lo >= 1e9 then latest_hi, latest_lo = latest_hi + 1, latest_lo - 1e9 end
  local tick_unit, tick, last_in_tick = tick_of(amount)
  local charge = {
    cost = cost,
    amount = amount,
    -- The latest TAT that leaves room.
    latest_hi = latest_hi,
    latest_lo = latest_lo,
    latest_n = room_n,
    cost_hi = cost_hi,
    cost_lo = cost_lo,
    cost_n = cost_n,
    quantum_index = quantum_index,
    quantum = quantum,
    is_queue = tag == QUEUE,
    tick_unit = tick_unit,
    tick = tick,
    last_in_tick = last_in_tick,
    -- The findings of `peek`: the TAT, or the present instant if that is later; the tick of the last charge, if it is
    -- known and there is a backlog; and the instant that the key holds, if its expiry follows from that.
    hi = 0,
    lo = 0,
    n = 0,
    last_charge = false,
    has_backlog = false,
    held_hi = false,
    held_lo = 0,
    has_other_rate = false,
    -- The state after the first charge of a key, and its expiry, once computed.
    first_state = false,
    first_hi = 0,
    first_lo = 0,
  }
  return charge, at
end

-- Returns whether the bucket has room for a charge, and the key's state.
local function peek(charge, key)
  local state, held_hi, held_lo, detail, held_amount = read(key)
  local hi, lo, n = now_hi, now_lo, 0
  local has_backlog, last_charge, has_other_rate = false, false, false
  if state == '' then
    held_hi = false
  else
    local amount = charge.amount
    local rounding = detail % charge.tick_unit
    hi, lo = held_hi % QUANTUM_INDEX_UNIT, held_lo
    if held_amount == amount and hi < FAR_HI and rounding <= amount then
      last_charge = detail - rounding
      if rounding > 0 then
        n = amount - rounding
        lo = lo - 1
        if lo < 0 then hi, lo = hi - 1, lo + 1e9 end
      end
    else
      hi, lo, n, last_charge, has_other_rate = load('gcra_backlog').tat_at_rate(amount, held_hi, held_lo, detail, held_amount)
      held_hi = false
    end
    if hi > now_hi or hi == now_hi and (lo > now_lo or lo == now_lo and n > 0) then
      has_backlog = true
    else
      hi, lo, n, last_charge = now_hi, now_lo, 0, false
    end
  end
  charge.hi, charge.lo, charge.n = hi, lo, n
  charge.has_backlog, charge.last_charge, charge.has_other_rate = has_backlog, last_charge, has_other_rate
  charge.held_hi, charge.held_lo = held_hi, held_lo
  local has_room = lo < charge.latest_lo or lo == charge.latest_lo and n <= charge.latest_n
  if hi ~= charge.latest_hi then has_room = hi < charge.latest_hi end
  return has_room, state
end

-- Returns the tick and the count of a charge that follows the one that `peek` has found.
local function next_tick(charge)
  local last_charge, tick, following = charge.last_charge, charge.tick, charge.last_in_tick
  if last_charge then
    if last_charge < tick or last_charge > following then
      -- Another tick: the count starts at zero, unless the clock has stepped back.
      local ahead = (tick - last_charge + last_charge % (8 * charge.tick_unit)) % 4294967296
      if ahead < 2147483648 then following = tick end
    elseif last_charge < following then
      following = last_charge + charge.tick_unit
    end
  end
  return following
end

-- Charges the bucket that `peek` has found.
local function commit(charge, key)
  local has_backlog = charge.has_backlog
  if not has_backlog and charge.first_state then
    -- The first charge leaves the same state under each unused key. Reusing it saves 10 % of
    -- a call with 64 requests for unused keys.
    write(key, charge.first_state, charge.first_hi, charge.first_lo)
  else
    local amount = charge.amount
    local hi, lo, n = charge.hi + charge.cost_hi, charge.lo + charge.cost_lo, charge.n + charge.cost_n
    if n >= amount then lo, n = lo + 1, n - amount end
    local rounding = 0
    if n > 0 then lo, rounding = lo + 1, amount - n end
    while lo >= 1e9 do
      hi, lo = hi + 1, lo - 1e9
    end

    -- A key with a backlog is often charged again: its expiry is rounded up, so that it rarely changes. Changing it each
    -- time would cost 20 % of a call with 64 requests for keys with a backlog.
    local quantum_index, quantum = 0, 1000
    if hi > FAR_HI or hi == FAR_HI and lo >= FAR_LO then
      amount = 0
    else
      local last_charge = next_tick(charge)
      rounding = rounding + last_charge
      if has_backlog then quantum_index, quantum = charge.quantum_index, charge.quantum end
    end
    local held_lo = charge.held_lo
    if hi + quantum_index == charge.held_hi and lo <= held_lo + -held_lo % quantum then
      -- Neither the hi of the TAT nor the amount changes. Writing only the part between them saves 8 % of such a
      -- call.
      overwrite(key, '6', pack('<I4I4', lo, rounding))
    else
      local state = encode(hi + quantum_index, lo, rounding, amount)
      local expires_lo = lo + -lo % quantum
      write(key, state, hi, expires_lo)
      if not has_backlog then charge.first_state, charge.first_hi, charge.first_lo = state, hi, expires_lo end
    end
  end
end

-- Converts the backlog that `peek` has found at another rate: it drains at the limit's own rate from now on.
local function convert_rate(charge, key)
  if charge.has_other_rate and charge.has_backlog then
    load('gcra_backlog').store_converted(key, charge.hi, charge.lo, charge.n, charge.amount)
  end
end

-- Refunds the part of a charge that has not drained.
local function refund(charge, key, ...)
  load('gcra_backlog').refund(charge, key, ...)
end

return { parse = parse, peek = peek, commit = commit, convert_rate = convert_rate, refund = refund }
