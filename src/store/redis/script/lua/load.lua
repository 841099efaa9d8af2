-- Returns the function that runs the file `name`, or that of the algorithm with this tag, and returns its functions. It
-- runs each file once in a call.

local module, now, clock_ahead = ...
local loaded = {}

local function load(name)
  local returned = loaded[name]
  if not returned then
    returned = module(name)(load, now, clock_ahead)
    loaded[name] = returned
  end
  return returned
end

return load
