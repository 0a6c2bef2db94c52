-- Libraries of Python functions: what they refuse is raised at the script's line.

local tables = ...

local error, pairs = error, pairs

local function results(ok, ...)
    if ok then return ... end
    error((...), 3)
end

local libraries = {}
for name, functions in pairs(tables) do
    local library = {}
    for called, implementation in pairs(functions) do
        library[called] = function(...) return results(implementation(...)) end
    end
    libraries[name] = library
end
return libraries
