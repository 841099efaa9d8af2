-- Decides requests on their cells, as `decide` in src/decision/decide.rs: peeks at all, then charges all or none. A lease
-- charges blocks of tokens besides the costs.

-- Gives a cell the size of an override, or its own, with the overage of `Algorithm::with_overage`: a bucket drains
-- within 2^52 µs, and holds at most 2^32 tokens.
local function resize(cell, tokens, amount)
  local span, capacity = cell.span, tokens + cell.beyond
  local overage = math.min(math.floor(tokens * cell.percent / 100), 4294967295 - tokens)
  local most, rest = 4294967296
  if cell.tag == ScriptTag.IntervalBucket then
    -- In whole intervals.
    most = math.floor(4503599627370496 / span) * amount
  elseif amount > 0 and amount * 1048576 < span then
    most, rest = mul_div(67108864, amount, span)
    most = most * 67108864 + mul_div(67108864, rest, span)
  end
  overage = math.min(overage, math.max(most - capacity, 0))
  cell.capacity, cell.hard = capacity, capacity + overage
  -- The size of a window has no amount.
  if amount > 0 then cell.amount = amount end
end

-- Returns the cost of a cell that has room for it, with as much of the wanted block as there is room for without overage.
local function with_block(cell, key)
  local state = cell.state

  -- Returns whether there is room for a block.
  local function fits(block)
    local cost, hard = cell.cost + block, block > 0 and cell.capacity or cell.hard
    if cell.tag == ScriptTag.Log then return cell.peek(key, now, cost, cell.capacity, hard, cell.span, cell.first) end
    return cell.peek(now, cost, hard, cell.amount, cell.span, state[1], state[2], state[3], state[4], cell.first)
  end

  if fits(cell.wanted) then return cell.cost + cell.wanted end
  local block, too_large = 0, cell.wanted
  while too_large - block > 1 do
    local middle = math.floor((block + too_large) / 2)
    if fits(middle) then block = middle else too_large = middle end
  end
  -- The cost of a log is that of its last peek.
  fits(block)
  return cell.cost + block
end

local cells, place, position = {}, start, 0
for i = 1, count do
  local tag, veto, is_overridable = byte(text, place, place + 2)
  local cell
  cell, place = cell_at(place + 3, tag, veto, position)
  if is_overridable == 1 then
    cell.percent, cell.beyond, cell.own_amount, place = unpack('<ddd', text, place)
    cell.tokens = cell.capacity - cell.beyond
  end
  if task == Task.Lease and tag ~= ScriptTag.Penalty then
    cell.wanted, place = unpack('<d', text, place)
  end
  cells[i], position = cell, position + 1 + is_overridable
end

for done = progress.done, same do
  -- If an error ends this request, `progress` tells which one it was.
  progress.done, progress.length = done, length
  local first_key, verdict, keys_read = progress.key + done * keys, length + 1, count
  length = verdict

  -- Peek at all.
  local is_allowed, quota_has_room = true, nil
  for i = 1, count do
    local cell = cells[i]
    local key, cost = KEYS[first_key + cell.position], cell.cost
    if cell.percent then
      local state, expires, _, tokens, amount = read(KEYS[first_key + cell.position + 1])
      if expires > 0 and expires <= now then state = '' end
      if state == '' then tokens, amount = cell.tokens, cell.own_amount end
      resize(cell, tokens, amount)
      reply[length + 1], reply[length + 2] = char(#state), state
      length, keys_read = length + 2, keys_read + 1
    end
    local has_room, state, expires, at, first, second
    if cell.tag == ScriptTag.Log then
      has_room, state = cell.peek(key, now, cost, cell.capacity, cell.hard, cell.span, cell.first)
    else
      state, expires, at, first, second, cell.kept = read(key)
      has_room, cell[1], cell[2], cell[3], cell[4] =
        cell.peek(now, cost, cell.hard, cell.amount, cell.span, expires, at, first, second, cell.first)
      if cell.wanted then cell.state = { expires, at, first, second } end
    end
    local size = #state
    reply[length + 1] = size == 22 and '\22' or size == 29 and '\29' or char(size)
    reply[length + 2] = state
    length = length + 2
    has_room = has_room or cost == 0
    cell.has_room = has_room
    if cell.veto == Veto.Quota then
      quota_has_room = quota_has_room or has_room
    elseif not has_room and cell.veto ~= Veto.Shadow then
      is_allowed = false
    end
  end
  is_allowed = is_allowed and quota_has_room ~= false
  reply[verdict] = char(is_allowed and 121 or 110, keys_read) -- y or n

  -- Charge all or none. A denial by a limit is a strike for the penalty behind it.
  local is_denied = false
  for i = 1, count do
    local cell = cells[i]
    local charges, has_room, cost = is_allowed and (task == Task.Acquire or task == Task.Lease), cell.has_room, cell.cost
    if cell.tag == ScriptTag.Penalty then
      charges = is_denied and task ~= Task.Peek and cell.amount > 0
    else
      is_denied = not has_room
    end
    if charges and has_room and cost > 0 then
      local key = KEYS[first_key + cell.position]
      if cell.wanted and cell.wanted > 0 then cost = with_block(cell, key) end
      if cell.tag == ScriptTag.Log then
        cell.charge(key, margin)
      else
        local expires, at, first, second, slack = cell.charge(
          now, cost, cell.hard, cell.amount, cell.span, cell[1], cell[2], cell[3], cell[4], cell.first, cell.second
        )
        if cell.tag ~= ScriptTag.Penalty then
          write(key, cell.kept, expires, at, first, second, slack)
        elseif not pcall(write, key, cell.kept, expires, at, first, second, slack) then
          -- The denial stands although Redis refuses writes.
          reply[verdict] = char(78, keys_read) -- N
        end
      end
    end
  end
end
return length
