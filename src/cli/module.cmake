set(MODULE_PRECOMPILED <nlohmann/json.hpp>)
