-- How much work the functions of C do for a script, so that the clock is looked at often enough.
--
-- Lua calls the hook that looks at the clock after a number of instructions, and one instruction may call a function
-- that goes through a hundred megabytes. `spent` adds up what such functions go through, and looks after LOOK bytes.
-- It is called before the work, so that an error of the look is not taken for one of the function.

local LOOK = 2 ^ 22 -- bytes: about a millisecond of copying

local look
local bytes = 0

local function spent(size)
    bytes = bytes + size
    if bytes >= LOOK then
        bytes = 0
        look()
    end
end

local function set_look(called) look = called end

return spent, set_look
