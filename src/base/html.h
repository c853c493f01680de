// Text inside HTML, XML and SVG.
#pragma once
#include <string>
#include <string_view>

namespace sinter::base {

// & < > " ' as character references, good between tags and inside attributes.
std::string escape_html(std::string_view text);

}  // namespace sinter::base
