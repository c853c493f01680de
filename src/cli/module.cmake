set(MODULE_PRECOMPILED <CLI/CLI.hpp> <nlohmann/json.hpp>)
