#include "eval/checkers/math_verify/tokens.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "eval/checkers/math_verify/expression.h"

namespace sinter::eval {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

using Literals = std::map<std::string, MathToken, std::less<>>;

void add(Literals& to, const std::string& type, std::initializer_list<const char*> texts) {
  for (const char* text : texts) to[text] = {type, text};
}

void add_signs(Literals& to) {
  add(to, "",
      {"\\,", "\\:", "\\;", "\\!", "\\$", "\\quad", "\\qquad", "\\thinspace", "\\medspace", "\\thickspace",
       "\\negthinspace", "\\negmedspace", "\\negthickspace", "\\hfil", "\\vspace", "\\vskip", "\\vbox"});
  add(to, "+", {"+", "⊕"});
  add(to, "-", {"-", "−"});
  add(to, "*", {"*", "×", "⋅", "∗", "⋆", "∘", "∙", "\\times", "\\cdot"});
  add(to, "/", {"/", "÷", "∕", "\\over", "\\div", ":"});
  add(to, "mod", {"\\mod"});
  for (const char* text :
       {"(", ")", "\\(", "\\)", "{", "}", "\\{", "\\}", "[", "]", ";", ",", "_", "^", "!", "&", "|"}) {
    to[text] = {text, text};
  }
  add(to, "\\{", {"\\lbrace"});
  add(to, "\\}", {"\\rbrace"});
  add(to, "[", {"\\lbrack"});
  add(to, "]", {"\\rbrack"});
  add(to, "(", {"\\lgroup"});
  add(to, ")", {"\\rgroup"});
  add(to, "\\\\", {"\\\\"});
  add(to, "lvert", {"\\lvert"});
  add(to, "rvert", {"\\rvert"});
  add(to, "vert", {"\\vert"});
  add(to, "transpose", {"^T", "^{T}", "'"});
  add(to, "degree", {"^\\circ", "^\\degree", "^\\circle", "^°", "^{\\circ}", "^{\\degree}", "^{\\circle}", "^{°}"});
  add(to, "=", {"=", "≡", "≐", "≔", "==", "\\equiv"});
  add(to, "approx", {"~=", "≈", "≃", "≅", "\\approx"});
  add(to, "<", {"<", "\\lt"});
  add(to, "<=", {"\\leq", "\\le", "\\leqslant", "≤", "≦", "<="});
  add(to, ">", {">", "\\gt"});
  add(to, ">=", {"\\geq", "\\ge", "\\geqslant", "≥", "≧", ">="});
  add(to, "!=", {"!=", "!==", "\\ne", "\\neq", "≠"});
  add(to, "in", {"\\in"});
  add(to, "notin", {"\\notin", "∉"});
  add(to, "union", {"\\cup", "∪"});
  add(to, "intersection", {"\\cap", "∩"});
  add(to, "setminus", {"\\setminus", "∖"});
  add(to, "+-", {"\\pm", "±", "∓", "\\mp"});
  add(to, "infinity", {"\\infty", "\\infty%", "\\infty\\%"});
}

void add_commands(Literals& to) {
  add(to, "lfloor", {"\\lfloor", "\\llcorner"});
  add(to, "rfloor", {"\\rfloor", "\\lrcorner"});
  add(to, "lceil", {"\\lceil", "\\ulcorner"});
  add(to, "rceil", {"\\rceil", "\\urcorner"});
  add(to, "frac", {"\\frac", "\\dfrac", "\\tfrac", "\\cfrac"});
  add(to, "binom", {"\\binom", "\\tbinom", "\\dbinom"});
  add(to, "choose", {"\\choose"});
  add(to, "sqrt", {"\\sqrt"});
  add(to, "boxed", {"\\boxed"});
  add(to, "phantom", {"\\phantom"});
  add(to, "operatorname", {"\\operatorname"});
  add(to, "e", {"e", "\\exponentialE"});
  for (const char* kind : {"matrix", "pmatrix", "bmatrix"}) {
    to[std::string("\\begin{") + kind + "}"] = {"matrix", kind};
    to[std::string("\\end{") + kind + "}"] = {"endmatrix", kind};
  }
  for (const char* name :
       {"log",    "ln",      "exp",     "sin",     "cos",    "tan",    "csc",    "sec",    "cot",    "sinh",
        "cosh",   "tanh",    "arcsin",  "arccos",  "arctan", "arccsc", "arcsec", "arccot", "arsinh", "arcosh",
        "artanh", "arcsinh", "arccosh", "arctanh", "floor",  "ceil",   "gcd",    "lcm",    "max",    "min"}) {
    to[std::string("\\") + name] = {"function", name};
  }
  for (const auto& [text, name] : {std::pair{"\\mathbb{N}", "N"},
                                   {"ℕ", "N"},
                                   {"\\mathbb{Z}", "Z"},
                                   {"ℤ", "Z"},
                                   {"\\mathbb{Q}", "Q"},
                                   {"ℚ", "Q"},
                                   {"\\mathbb{R}", "R"},
                                   {"ℝ", "R"},
                                   {"\\mathbb{C}", "C"},
                                   {"ℂ", "C"},
                                   {"\\emptyset", "empty"},
                                   {"∅", "empty"},
                                   {"\\{\\}", "empty"},
                                   {"\\lbrace\\rbrace", "empty"}}) {
    to[text] = {"set", name};
  }
  // Words of sympy that are no letters beside each other; where no function can stand they end the reading.
  add(to, "word", {"gcd",          "lcm",     "floor",  "ceil",        "eye",       "zeros",       "ones",
                   "cols",         "rows",    "diag",   "norm",        "rank",      "trace",       "tr",
                   "rref",         "hstack",  "vstack", "orth",        "ortho",     "orthogonal",  "orthogonalize",
                   "nullspace",    "eig",     "eigen",  "diagonalize", "eigenvals", "eigenvalues", "eigenvects",
                   "eigenvectors", "svd",     "SVD",    "arsinh",      "arcsinh",   "arcosh",      "arccosh",
                   "artanh",       "arctanh", "matrix", "pmatrix",     "bmatrix",   "vmatrix"});
}

void add_symbols(Literals& to) {
  static const std::pair<const char*, const char*> kGreek[] = {
      {"alpha", "α"},    {"beta", "β"},       {"gamma", "γ"},   {"Gamma", "Γ"},   {"delta", "δ"},  {"Delta", "Δ"},
      {"epsilon", "ε"},  {"varepsilon", "ϵ"}, {"zeta", "ζ"},    {"eta", "η"},     {"theta", "θ"},  {"Theta", "Θ"},
      {"vartheta", "ϑ"}, {"iota", "ι"},       {"kappa", "κ"},   {"lambda", "λ"},  {"Lambda", "Λ"}, {"mu", "μ"},
      {"nu", "ν"},       {"xi", "ξ"},         {"Xi", "Ξ"},      {"omicron", "ο"}, {"pi", "π"},     {"Pi", "Π"},
      {"varpi", "ϖ"},    {"rho", "ρ"},        {"varrho", "ϱ"},  {"sigma", "σ"},   {"Sigma", "Σ"},  {"varsigma", "ς"},
      {"tau", "τ"},      {"upsilon", "υ"},    {"Upsilon", "Υ"}, {"phi", "φ"},     {"Phi", "Φ"},    {"varphi", "ϕ"},
      {"chi", "χ"},      {"psi", "ψ"},        {"Psi", "Ψ"},     {"omega", "ω"},   {"Omega", "Ω"}};
  for (const auto& [name, letter] : kGreek) {
    to[std::string("\\") + name] = {"symbol", name};
    to[letter] = {"symbol", name};
  }
  for (const char* name :
       {"ell",        "hbar",    "triangle", "angle",   "measuredangle", "square",      "blacksquare",
        "varnothing", "Re",      "Im",       "imath",   "jmath",         "nabla",       "wp",
        "prime",      "sharp",   "flat",     "natural", "clubsuit",      "diamondsuit", "heartsuit",
        "spadesuit",  "bigstar", "lozenge",  "surd",    "complement"}) {
    to[std::string("\\") + name] = {"symbol", name};
  }
}

const Literals& literals() {
  static const Literals kLiterals = [] {
    Literals all;
    add_signs(all);
    add_commands(all);
    add_symbols(all);
    return all;
  }();
  return kLiterals;
}

// Commands whose braces hold a name.
constexpr std::string_view kAccents[] = {
    "acute",      "bar",       "overline", "breve",          "check",   "dot",        "ddot",   "grave",      "hat",
    "tilde",      "widetilde", "vec",      "overrightarrow", "bm",      "boldsymbol", "text",   "textit",     "textbf",
    "textnormal", "mathbb",    "mathbin",  "mathbf",         "mathcal", "mathfrak",   "mathit", "mathnormal", "mathop",
    "mathord",    "mathrel",   "mathring", "mathrm",         "mathscr", "mathsf",     "mathtt", "mbox"};

// Bytes of digits with or without a point.
size_t number_bytes(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && is_digit(text[n])) ++n;
  if (n + 1 < text.size() && text[n] == '.' && is_digit(text[n + 1])) {
    for (++n; n < text.size() && is_digit(text[n]);) ++n;
  }
  return n;
}

// 5, 5.5, 5E-3, 50%, 50\%: the longest.
std::pair<MathToken, size_t> read_number(std::string_view text) {
  const size_t digits = number_bytes(text);
  size_t at = digits + (digits < text.size() && is_blank(text[digits]) ? 1 : 0);
  for (const std::string_view sign : {"\\%", "%"}) {
    if (text.substr(at).starts_with(sign)) return {{"percent", std::string(text.substr(0, digits))}, at + sign.size()};
  }
  at = digits;
  if (at < text.size() && text[at] == 'E') {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    const size_t first = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    if (at > first) return {{"number", std::string(text.substr(0, at))}, at};
  }
  return {{"number", std::string(text.substr(0, digits))}, digits};
}

// "d x" and "d\theta" are one symbol.
size_t differential_bytes(std::string_view text) {
  size_t n = 1;
  while (n < text.size() && is_blank(text[n])) ++n;
  if (n < text.size() && is_letter(text[n])) return n + 1;
  if (n + 1 >= text.size() || text[n] != '\\' || !is_letter(text[n + 1])) return 0;
  for (++n; n < text.size() && is_letter(text[n]);) ++n;
  return n;
}

size_t accent_bytes(std::string_view text) {
  size_t longest = 0;
  for (const std::string_view name : kAccents) {
    if (!text.substr(1).starts_with(name)) continue;
    size_t at = 1 + name.size();
    if (at < text.size() && is_blank(text[at])) ++at;
    const size_t end = text.find('}', at);
    if (at < text.size() && text[at] == '{' && end != std::string_view::npos) longest = std::max(longest, end + 1);
  }
  return longest;
}

size_t array_bytes(std::string_view text) {
  constexpr std::string_view kBegin = "\\begin{array}{";
  if (!text.starts_with(kBegin)) return 0;
  const size_t end = text.find_first_not_of("clr", kBegin.size());
  return end != std::string_view::npos && text[end] == '}' ? end + 1 : 0;
}

std::pair<MathToken, size_t> read_token(std::string_view text) {
  std::pair<MathToken, size_t> best{{}, 0};
  auto offer = [&](MathToken token, size_t bytes) {
    if (bytes > best.second) best = {std::move(token), bytes};
  };
  for (size_t n = std::min<size_t>(text.size(), 24); n > 0; --n) {
    const auto found = literals().find(text.substr(0, n));
    if (found == literals().end()) continue;
    // A blank behind a Greek letter is part of it.
    const bool takes_blank = found->second.type == "symbol" && n < text.size() && text[n] == ' ';
    offer(found->second, n + (takes_blank ? 1 : 0));
    break;
  }
  if (text[0] == '\\') {
    const size_t accent = accent_bytes(text);
    offer({"accent", std::string(text.substr(0, accent))}, accent);
    offer({"matrix", "array"}, array_bytes(text));
    if (text.starts_with("\\end{array}")) offer({"endmatrix", "array"}, 11);
  } else if (is_digit(text[0]) || (text[0] == '.' && text.size() > 1 && is_digit(text[1]))) {
    auto [token, bytes] = read_number(text);
    offer(std::move(token), bytes);
  } else if (is_letter(text[0])) {
    if (text[0] == 'd') {
      const size_t bytes = differential_bytes(text);
      std::string name;
      for (const char c : text.substr(0, bytes)) {
        if (!is_blank(c) && c != '\\') name += c;
      }
      offer({"differential", name}, bytes);
    }
    offer({"letter", std::string(text.substr(0, 1))}, 1);
  }
  if (best.second == 0) throw MathFailure();
  return best;
}

}  // namespace

std::vector<MathToken> read_tokens(std::string_view latex) {
  std::vector<MathToken> tokens;
  for (size_t at = 0; at < latex.size();) {
    if (is_blank(latex[at])) {
      ++at;
      continue;
    }
    auto [token, bytes] = read_token(latex.substr(at));
    at += bytes;
    if (!token.type.empty()) tokens.push_back(std::move(token));
  }
  tokens.push_back({"end", ""});
  return tokens;
}

}  // namespace sinter::eval
