-- GCRA: continuous token buckets and leaky buckets (tag `d`), and queues (tag `q`), as src/algorithm/bucket.rs.
--
-- The two counts of a key's state are by how many 1/amount of a µs its expiry was rounded up, and the amount. The instant
-- until which Redis keeps the key follows them.
--
-- Here a level is (span, n): the time in which it drains, which is `span` µs and n of `amount` equal parts of a µs.

local load, now = ...
local keys = load('key')
local check, write, overwrite, encode = keys.check, keys.write, keys.overwrite, keys.encode
local call, pack, unpack = redis.call, struct.pack, struct.unpack

local QUEUE = 113 -- q
local BUCKET_FORMAT, BUCKET_SIZE = '<I7I7I4I4I7', 29

-- Reads the arguments of a charge from a request: cost and amount; the highest level that leaves room for the cost, and
-- the level of the cost, in two parts each; and for how many µs a key with a level may be kept longer than needed.
local function parse(text, at, tag)
  local cost, amount, room, room_n, cost_span, cost_n, slack
  cost, amount, room, room_n, cost_span, cost_n, slack, at = unpack('<ddddddd', text, at)
  local charge = {
    cost = cost,
    amount = amount,
    room = room,
    room_n = room_n,
    cost_span = cost_span,
    cost_n = cost_n,
    slack = slack,
    is_queue = tag == QUEUE,
    -- The findings of `peek`: the level and its instant, and until when the key is kept.
    from = 0,
    span = 0,
    n = 0,
    kept = 0,
    -- The state after the first charge of a key, and its expiry, once computed.
    first_state = false,
    first_expires = 0,
  }
  return charge, at
end

-- Returns whether the bucket has room for a charge, and the key's state.
local function peek(charge, key)
  local state = call('GET', key)
  local from, span, n, kept = now, 0, 0, 0
  if not state then
    state = ''
  else
    check(key, state, BUCKET_SIZE)
    local expires, charged_at, rounding, held_amount
    expires, charged_at, rounding, held_amount, kept = unpack(BUCKET_FORMAT, state)
    -- If the clock has stepped back behind the last charge, time stands still.
    if charged_at > from then from = charged_at end
    if expires > from then
      if held_amount == charge.amount then
        span = expires - from
        if rounding > 0 then span, n = span - 1, held_amount - rounding end
      else
        span, n = load('gcra_history').level(charge.amount, from, expires, charged_at, rounding, held_amount)
      end
    end
  end
  charge.from, charge.span, charge.n, charge.kept = from, span, n, kept
  local has_room = span < charge.room or span == charge.room and n <= charge.room_n
  return has_room, state
end

-- Charges the bucket that `peek` has found.
local function commit(charge, key)
  local from, has_level = charge.from, charge.span + charge.n > 0
  if not has_level and charge.first_state and from == now then
    -- The first charge leaves the same state under each unused key. Reusing it saves 10 % of
    -- a call with 64 requests for unused keys.
    write(key, charge.first_state, charge.first_expires)
  else
    local amount, span, n = charge.amount, charge.span + charge.cost_span, charge.n + charge.cost_n
    if n >= amount then span, n = span + 1, n - amount end
    local expires, rounding = from + span, 0
    if n > 0 then expires, rounding = expires + 1, amount - n end
    -- A key with a level is often charged again: its expiry is later than needed, so that it rarely changes. Changing it
    -- each time would cost 20 % of a call with 64 requests for keys with a level.
    if has_level and expires <= charge.kept and charge.kept <= expires + charge.slack then
      local state = encode(expires, from, rounding, amount)
      overwrite(key, state)
    else
      local kept = expires
      if has_level then kept = kept + charge.slack end
      local state = pack(BUCKET_FORMAT, expires, from, rounding, amount, kept)
      write(key, state, kept)
      if not has_level and from == now then charge.first_state, charge.first_expires = state, kept end
    end
  end
end

-- Refunds the part of a charge that has not drained.
local function refund(charge, key, mark)
  load('gcra_history').refund(charge, key, mark)
end

-- Gives a charge another capacity and rate.
local function resize(charge, capacity, amount, interval)
  load('gcra_history').resize(charge, capacity, amount, interval)
end

return { parse = parse, peek = peek, commit = commit, refund = refund, resize = resize }
