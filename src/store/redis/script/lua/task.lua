-- Performs a request that decides nothing: a refund, a reset, or reading or setting an override.

local load, KEYS, text, _, _, place, first_key, key_count, _, reply, progress = ...
local REFUND, GET_OVERRIDE, SET_OVERRIDE, RESET = 114, 103, 111, 120 -- r, g, o, x

local task, count = string.byte(text, place, place + 1)
local answer = 'y\0'
place = place + 5
if task == REFUND then
  -- Read all before the first refund, so that an error changes nothing.
  local refunds = {}
  for i = 1, count do
    local tag, charge, next_place = string.byte(text, place)
    local rule = load(string.char(tag))
    charge, next_place = rule.parse(text, place + 23, tag)
    refunds[i] = { refund = rule.refund, charge = charge, mark = string.sub(text, place + 1, place + 22) }
    place = next_place
  end
  for i = 1, count do
    refunds[i].refund(refunds[i].charge, KEYS[first_key + i - 1], refunds[i].mark)
  end
elseif task == GET_OVERRIDE then
  local state = load('override').current(KEYS[first_key])
  answer = 'y\1' .. string.char(#state) .. state
elseif task == SET_OVERRIDE then
  load('override').set(KEYS[first_key], text, place)
elseif task == RESET then
  for i = first_key, first_key + key_count - 1 do
    redis.call('DEL', KEYS[i])
  end
else
  error({ err = 'UNSUPPORTED the script has no task ' .. string.char(task) })
end
reply[progress.length + 1] = answer
progress.length = progress.length + 1
