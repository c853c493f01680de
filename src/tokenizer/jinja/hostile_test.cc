// Templates are foreign input: whatever they do ends in text or in an error, in bounded time and memory.
#include <gtest/gtest.h>

#include "tokenizer/jinja/interpreter.h"

namespace sinter::tokenizer::jinja {
namespace {

// A tenth of what real templates may do, so that the tests are quick.
constexpr Limits kLimits{.max_work = 2'000'000, .max_output_bytes = 6 << 20};

std::string run(const std::string& source, const Limits& limits = kLimits) {
  try {
    Statements body = parse_template(source, "t");
    return Interpreter("t", limits).render(body, {}).text;
  } catch (const TemplateError& e) {
    return std::string("error: ") + e.what();
  }
}

void expect_error(const std::string& source, const std::string& words) {
  std::string got = run(source).substr(0, 300);
  EXPECT_NE(got.find("error: chat template 't', line "), std::string::npos) << source.substr(0, 100) << "\n" << got;
  EXPECT_NE(got.find(words), std::string::npos) << source.substr(0, 100) << "\n" << got;
}

std::string repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(HostileTemplate, EndlessRecursionIsAnError) {
  expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nest deeper");
  expect_error("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "nest deeper");
  expect_error("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nest deeper");
  expect_error("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}", "");
}

TEST(HostileTemplate, DeepSyntaxIsAnError) {
  for (int depth : {200, 100000}) {
    expect_error("{{ " + repeat("(", depth) + "1" + repeat(")", depth) + " }}", "nests deeper");
    expect_error("{{ " + repeat("[", depth) + repeat("]", depth) + " }}", "nests deeper");
    expect_error("{{ " + repeat("-", depth) + "1 }}", "nests deeper");
    expect_error("{{ " + repeat("not ", depth) + "1 }}", "nests deeper");
    expect_error("{{ " + repeat("f(", depth) + repeat(")", depth) + " }}", "nests deeper");
    expect_error("{{ 1" + repeat(" if 1 else 1", depth) + " }}", "nests deeper");
    expect_error(repeat("{% if 1 %}", depth) + repeat("{% endif %}", depth), "nests deeper");
    expect_error("{% for " + repeat("(", depth) + "x" + repeat(")", depth) + " in y %}{% endfor %}", "nests deeper");
  }
  expect_error("{{ 1" + repeat(" + 1", 100000) + " }}", "levels");
  expect_error("{{ 1" + repeat("|abs", 100000) + " }}", "levels");
  expect_error("{{ x" + repeat(".y", 100000) + " }}", "levels");
  expect_error("{{ x" + repeat("[0]", 100000) + " }}", "levels");
  expect_error("{{ x" + repeat("()", 100000) + " }}", "levels");
}

TEST(HostileTemplate, LongButFlatTemplatesRender) {
  EXPECT_EQ(run(repeat("{{ 1 }}", 50000)).size(), 50000u);
  EXPECT_EQ(run("{{ [" + repeat("1,", 50000) + "]|length }}"), "50000");
  EXPECT_EQ(run("{{ ''" + repeat(" ~ 'a'", 5000) + " }}").size(), 5000u);
  EXPECT_EQ(run("{% if 0 %}" + repeat("{% elif 0 %}", 20000) + "{% else %}x{% endif %}"), "x");
}

TEST(HostileTemplate, EndlessWorkIsStopped) {
  std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}";
  expect_error(loops + "{% endfor %}{% endfor %}{% endfor %}", "steps of work");
  expect_error("{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
               "steps of work");
  expect_error("{% for i in range(9999) %}{% set x = range(99999)|list|sort|reverse|list %}{% endfor %}",
               "steps of work");
  expect_error("{% set s = 'ab' * 100000 %}{% for i in range(99999) %}{% set x = s|upper %}{% endfor %}",
               "steps of work");
  expect_error("{% set s = 'é' * 300000 %}{% for i in range(99999) %}{{ s[299999] }}{% endfor %}", "steps of work");
  // A needle and a haystack that make naive searching quadratic.
  expect_error("{% set s = 'a' * 999999 %}{% set n = 'a' * 999999 + 'b' %}{{ n in s }}", "steps of work");
  expect_error("{% set s = 'a' * 999999 %}{{ s.split('a' * 99999 + 'b') }}", "steps of work");
  expect_error("{% set s = 'a' * 999999 %}{{ s.strip('bcdefghijk' * 9999) }}", "steps of work");
}

TEST(HostileTemplate, GiantTextsAreStopped) {
  expect_error("{{ 'a' * 9999999999 }}", "bytes and was stopped");
  expect_error("{{ [1] * 9999999999 }}", "steps of work");
  expect_error("{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
               "bytes and was stopped");
  expect_error("{% set s = 'ab' * 100000 %}{% for i in range(9999) %}{{ s }}{% endfor %}", "bytes and was stopped");
  expect_error("{{ 'a'.center(99999999999) }}", "was stopped");
  expect_error("{{ '%99999999d' % 1 }}", "places");
  expect_error("{{ '{:99999999}'.format(1) }}", "places");
  expect_error("{{ 'a\nb'|indent(9999999999) }}", "bytes and was stopped");
  expect_error("{{ ('a' * 999999).replace('a', 'b' * 999999)|length }}", "stopped");
  expect_error("{{ range(99999)|join('x' * 99999)|length }}", "stopped");
  expect_error("{{ range(999999999) }}", "100000");
  expect_error("{{ 2 ** 9999 }}", "too large");
  expect_error("{{ 9223372036854775807 + 1 }}", "too large");
  expect_error("{{ 9223372036854775808 }}", "not a number");
}

TEST(HostileTemplate, SharedContainersCostTheirPrintedSize) {
  // Twenty levels of doubling are a million items when printed, compared or hashed; sixty would be for ever.
  std::string doubling =
      "{% set ns = namespace(x=(1,), y=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}"
      "{% set ns.y = (ns.y, ns.y) %}{% endfor %}";
  expect_error(doubling + "{{ ns.x }}", "steps of work");
  expect_error(doubling + "{{ ns.x|tojson }}", "steps of work");
  expect_error(doubling + "{{ ns.x == ns.y }}", "steps of work");
  expect_error(doubling + "{{ ns.x < ns.y }}", "steps of work");
  expect_error(doubling + "{{ {ns.x: 1} }}", "too large");
  expect_error(doubling + "{{ ns.x in [ns.y] }}", "steps of work");
  expect_error(doubling + "{{ ns.x.nope.nope }}", "no attribute");  // the message must not print the value
}

TEST(HostileTemplate, CyclesAndChainsAreFreedAndNeverPrintedForEver) {
  expect_error("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", "nest deeper");
  expect_error("{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}", "nest deeper");
  expect_error("{% set d = {} %}{% set _ = d.update(x=d) %}{{ d == d.copy() }}{{ d }}", "nest deeper");
  expect_error("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "nest deeper");
  EXPECT_EQ(run("{% set ns = namespace(x=[]) %}{% set ns.x = [ns] %}{% macro m() %}{% endmacro %}{% set ns.m = m %}ok"),
            "ok");
  expect_error("{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
               "nest deeper");
  expect_error("{% set ns = namespace(x={}) %}{% for i in range(99999) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
               "nest deeper");
  expect_error("{% set ns = namespace(x='a') %}{% for i in range(99999) %}{% set ns.x = [ns.x].copy %}{% endfor %}",
               "nest deeper");
  // A chain tied from its far end: no list is deep when it is made.
  EXPECT_EQ(run("{% set ns = namespace(x=[]) %}{% set first = ns.x %}{% for i in range(99999) %}{% set next = [] %}"
                "{% set _ = ns.x.append(next) %}{% set ns.x = next %}{% endfor %}ok"),
            "ok");
  EXPECT_EQ(
      run("{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set n = namespace(x=ns.x) %}{% set ns.x = n %}"
          "{% endfor %}ok"),
      "ok");
  expect_error(
      "{% set ns = namespace(l=1) %}{% for i in range(9999) %}{% for j in [1] %}{% set _ = loop.changed(ns.l) %}"
      "{% set ns.l = loop %}{% endfor %}{% endfor %}{{ ns.l.changed(ns.l) }}{{ ns.l == 1 }}{{ nope.x }}",
      "");
}

TEST(HostileTemplate, UnreadableInputIsAnErrorWithItsLine) {
  EXPECT_NE(run("a\nb\n{{ nope.x }}").find("line 3: 'nope' is undefined"), std::string::npos);
  EXPECT_NE(run("a\n{% macro m() %}\n{{ 1/0 }}{% endmacro %}\n{{ m() }}").find("line 3: division by zero"),
            std::string::npos);
  EXPECT_NE(run("\n\n{% fo x in y %}").find("line 3: unknown block 'fo'; did you mean 'for'?"), std::string::npos);
  EXPECT_NE(run("{{ x|trimm }}").find("unknown filter 'trimm'; did you mean 'trim'?"), std::string::npos);
  EXPECT_NE(run("{% if x %}\n\n").find("'{% endif %}' is missing"), std::string::npos);
  EXPECT_NE(run("{% for x in y %}\n\n").find("'{% endfor %}' is missing"), std::string::npos);
  EXPECT_NE(run("\n{{ raise_exception('Only user roles') }}").find("line 2: Only user roles"), std::string::npos);
  EXPECT_NE(run(std::string("{{ '\xff\xfe' | upper }}\xff")).find("\xff"), std::string::npos);  // bytes pass through
  EXPECT_EQ(run(std::string("{{ \0 }}", 7)), "error: chat template 't', line 1: unexpected character '\\x00'");
}

}  // namespace
}  // namespace sinter::tokenizer::jinja
