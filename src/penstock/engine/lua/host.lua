-- How Lua calls Python. Python that Lua has called must never call Lua in turn, nor make it raise an error: Lua would
-- jump over the frames of Python. Near the limits of the stack (200 nested calls of C, 16,384 calls in all) every call
-- of a Lua function may raise one, a finalizer too. Hence three rules:
--
--   No table or function is read by Python. More arguments than DIRECT go to Python in parts before the call.
--   While Python runs, `watch` has no finalizer, because what Python puts into Lua can make the collector run.
--   The strings of a call are together no longer than a script's memory: Python gets copies of them.
--
-- redis.call in sandbox.lua does the same as `outside`, written out.

local gather, memory_limit, spent = ...

local error, gcinfo, getmetatable, newproxy, next = error, gcinfo, getmetatable, newproxy, next
local pcall, select, setmetatable, type, unpack = pcall, select, setmetatable, type, unpack
local min = math.min

local DIRECT = 200 -- arguments that Python takes one by one; see MAX_REFERENCES in interpreter.py
local MUCH = memory_limit / 1024 -- number of arguments times kilobytes that Lua holds; fewer cannot be too long

-- arguments -----------------------------------------------------------------------------------------------------------

local function hand_over(...)
    local count, given = select("#", ...), {...}
    for first = 1, count, DIRECT do
        if gather(first == 1, unpack(given, first, min(first + DIRECT - 1, count))) ~= true then
            error("not enough memory", 0)
        end
    end
end

local function check_size(...)
    local size = 0
    for _, argument in next, {...} do
        if type(argument) == "string" then size = size + #argument end
    end
    if size > memory_limit then error("not enough memory", 0) end
    spent(size)
end

-- the collector -------------------------------------------------------------------------------------------------------

local watch, notify = newproxy(true)
local copies = getmetatable(watch) -- the metatable of copies of `watch`; with one field, so that setting it cannot fail
local alive = setmetatable({false}, {__mode = "v"}) -- the copy that the collector has not seen yet

local function copy() alive[1] = newproxy(watch) end

-- Where there is no memory for it, the next look at the clock or call of Python tries again.
local function renew() pcall(copy) end

-- Each cycle of the collector frees a copy of `watch`. It calls nothing of Python.
local function collected()
    notify()
    if alive[1] == nil then renew() end
end

local function set_notify(called)
    notify, copies.__gc = called, collected
    renew()
end

-- After an error in Python, which skips what follows a call.
local function recover()
    copies.__gc = collected
    if alive[1] == nil then renew() end
end

-- Call a function of Python, `gathered` if the arguments were handed over before.
local function outside(direct, gathered, ...)
    local count, reply = select("#", ...)
    if count * gcinfo() > MUCH then check_size(...) end
    if count > DIRECT then
        hand_over(...)
        copies.__gc = nil
        reply = gathered()
    else
        copies.__gc = nil
        reply = direct(...)
    end
    copies.__gc = collected
    if alive[1] == nil then renew() end
    return reply
end

return {
    outside = outside, hand_over = hand_over, check_size = check_size, direct = DIRECT, much = MUCH,
    copies = copies, alive = alive, collected = collected, renew = renew, recover = recover, set_notify = set_notify,
}
