set(MODULE_PRECOMPILED <CLI/CLI.hpp> <nlohmann/json.hpp>)
# Options and tables, nothing that takes time when it runs; every file has a copy of CLI11 in it to optimise.
set(MODULE_OPTIONS $<$<CONFIG:Release>:-O1>)
