-- Decides a request of several limits, or of one that has an override, a penalty or a less frequent algorithm; and those
-- that differ from it only in their keys.
--
-- script/inline.rs puts the functions of `gcra` and `window` in place of their calls.

local load, KEYS, text, now, clock_ahead, place, first_key, key_count, same, reply, progress, gcra, window = ...
local ACQUIRE, PEEK = 97, 112 -- a, p
local GCRA, QUEUE, FIXED_WINDOW, CALENDAR_WINDOW = 100, 113, 119, 107 -- d, q, w, k
local SHADOW, QUOTA = 115, 113 -- s, q
local byte, char = string.byte, string.char

-- Read the limits.
local task, count = byte(text, place, place + 1)
local limits, has_overrides, has_penalties, has_quotas, has_free = {}, false, false, false, false
local place, position = place + 5, 0
for i = 1, count do
  local tag, mode, has_penalty, is_overridable = byte(text, place, place + 3)
  local is_gcra, is_window = tag == GCRA or tag == QUEUE, tag == FIXED_WINDOW or tag == CALENDAR_WINDOW
  local own_size, penalty, rule, charge = false, false, false, nil
  place = place + 4
  if is_gcra then
    charge, place = gcra.parse(text, place, tag)
  elseif is_window then
    charge, place = window.parse(text, place, tag)
  else
    rule = load(char(tag))
    charge, place = rule.parse(text, place, tag)
  end
  if is_overridable == 1 then
    has_overrides = true
    own_size, place = load('override').parse(text, place, tag)
  end
  if has_penalty == 1 then
    has_penalties = true
    penalty, place = load('penalty').parse(text, place)
  end
  has_quotas, has_free = has_quotas or mode == QUOTA, has_free or charge.cost == 0
  local limit = {
    is_gcra = is_gcra,
    is_window = is_window,
    rule = rule,
    charge = charge,
    is_free = charge.cost == 0,
    mode = mode,
    own_size = own_size,
    penalty = penalty,
    -- The positions of its key and its penalty's among those of the request. Its override's key follows its own.
    position = position,
    penalty_position = position + 1 + is_overridable,
    has_room = false,
  }
  limits[i] = limit
  position = limit.penalty_position + has_penalty
end

local length = progress.length
for done = progress.done, same do
  -- If an error ends this request, `progress` tells which one it was.
  progress.done, progress.length = done, length
  local start, request_key = length, first_key + done * key_count
  length = start + 1

  -- Peek all.
  local is_allowed, quota_has_room, keys_read = true, nil, count
  for i = 1, count do
    local limit = limits[i]
    local charge, key = limit.charge, KEYS[request_key + limit.position]
    local has_room, states
    if has_overrides and limit.own_size then
      states = load('override').apply(limit.own_size, charge, KEYS[request_key + limit.position + 1])
      reply[length + 1], reply[length + 2] = char(#states), states
      length, keys_read = length + 2, keys_read + 1
    end
    if limit.is_gcra then
      has_room, states = gcra.peek(charge, key)
    elseif limit.is_window then
      has_room, states = window.peek(charge, key)
    else
      has_room, states = limit.rule.peek(charge, key)
    end
    limit.has_room = has_room
    local size = #states
    reply[length + 1], reply[length + 2] = size == 29 and '\29' or size == 0 and '\0' or char(size), states
    length = length + 2
    local penalty = has_penalties and limit.penalty
    if penalty then
      states = load('penalty').peek(penalty, KEYS[request_key + limit.penalty_position])
      reply[length + 1], reply[length + 2] = char(#states), states
      length, keys_read = length + 2, keys_read + 1
      has_room = has_room and not penalty.is_locked_out
    end
    has_room = has_room or limit.is_free
    if has_quotas and limit.mode == QUOTA then
      quota_has_room = quota_has_room or has_room
    elseif not has_room and limit.mode ~= SHADOW then
      is_allowed = false
    end
  end
  if quota_has_room == false then is_allowed = false end
  reply[start + 1] = char(is_allowed and 121 or 110, keys_read)

  -- Commit all or none.
  local commits = is_allowed and task == ACQUIRE
  for i = 1, count do
    local limit = limits[i]
    local charge, key = limit.charge, KEYS[request_key + limit.position]
    if has_free and limit.is_free then
      -- Changes nothing.
    elseif commits and limit.has_room then
      if limit.is_gcra then
        gcra.commit(charge, key)
      elseif limit.is_window then
        window.commit(charge, key)
      else
        limit.rule.commit(charge, key)
      end
    end
  end

  -- Count the denial as a strike for each limit that has no room.
  if has_penalties and not is_allowed and task ~= PEEK then
    for i = 1, count do
      local limit = limits[i]
      local penalty = limit.penalty
      local is_denied = not (limit.has_room or limit.is_free)
      if penalty and is_denied and penalty.max_strikes > 0 and not penalty.is_locked_out then
        load('penalty').strike(penalty, KEYS[request_key + limit.penalty_position])
      end
    end
  end
end
progress.length = length
