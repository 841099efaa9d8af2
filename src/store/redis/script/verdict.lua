        end
      elseif owing and owing[i] and cost > 0 and not (noted or is_again) then
        guarded(drains.adopt, unpack(owing[i]))
      end
      if noted then charge[19] = state end
    end
    -- Those that are the same need all limits to have been read.
    if wrong and not (noted and fresh) then break end
    -- Who takes nothing needs no room, and nobody does of a limit that is not enforced.
    if noted then
      -- Of one limit, or more.
      if not raw then
        reply[part + 1], reply[part + 2] = '\0', ''
      else
        reply[part + 1] = letter and '\1' or char(#raw / 18)
        reply[part + 2] = raw
      end
      part = part + 2
      if has_penalty and charge.penalty then
        charge.free = free
        free, part = guarded(seldom.is_free, charge, part), part + 2
        if wrong then break end
      end
      if charge.is_quota then
        quota_has_room = quota_has_room or free or cost == 0 or false
      elseif not (free or cost == 0 or charge.is_shadow) then
        room = false
      end
    elseif is_again then
      -- Nothing is told of it, but what is.
    elseif raw then
      if free or cost == 0 or is_shadow then reply[parts + 1] = 'y\1\1' else reply[parts + 1] = 'n\1\1' end
      parts = parts + 2
      reply[parts] = raw
    else
      parts = parts + 1
      if free or cost == 0 or is_shadow then reply[parts] = 'y\1\0' else reply[parts] = 'n\1\0' end
    end
  end
  if quota_has_room == false then room = false end
  if noted and not (wrong or is_again) then
    local take = takes and room
    for i = 1, (take or owing) and decides or 0 do
      local charge = charges[i]
      local state = take and charge[19]
      if state then
        local id, offset, expires = charge[18], charge[20], charge[21]
