# SPDX-License-Identifier: MIT
"""The small templates of make_templates.py: expressions, and whole templates."""

CONTEXT = {
    "s": "Hello, World", "t": "  two words\n", "u": "Grüße, Ωμέγα ΣΊΣΥΦΟΣ ß ﬁ 漢字 🙂", "empty": "",
    "n": 7, "z": 0, "neg": -7, "f": 2.5, "big": 1e22, "small": 1e-7, "yes": True, "no": False,
    "nil": None, "l": [3, 1, 2], "words": ["b", "A", "c", "B"], "nested": [[1, 2], [3, [4]]],
    "d": {"b": 1, "a": "x", "items": "shadow", "c": {"d": [10, 20]}},
    "rows": [{"n": "x", "v": 2, "on": True}, {"n": "Y", "v": 1, "on": False}, {"n": "x", "v": 3}],
    "quotes": "it's \"so\" \\ done", "lines": "a\nb\n\nc\n", "html": "<a href=\"x\">&'</a>",
    "control": "\u0000\u0001\u001f\u007f\u0080\u00a0\u200b\ufeff\u2028", "floats": [0.1, 1.0, 1e16, 1e15, 123456.789, -0.0],
}

CASES = r"""
1 + 2 * 3
(1 + 2) * 3
2 ** 3 ** 2
-2 ** 2
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
7 / 2
6 / 2
1 / 0
1 // 0
1 % 0
0.1 + 0.2
1e3
1.5e-7
123456789012345678
1_000 + 0x1f + 0b11 + 0o17
9223372036854775807
2 ** 62
2 ** -1
2 ** 0.5
10 ** 20.0
1e16
1e15
123456789.123
1e22
5e-324
1.7976931348623157e308
floats
big
small
f * 2
n / 2
1 + true
true + true
- yes
+ yes
not 1
not not ''
not nil
1 and 2
0 and 2
0 or 'x'
'' or 0
1 if yes else 2
1 if no else 2
1 if no
'a' if no else 'b' if no else 'c'
(1 if no) is defined
1 < 2 < 3
1 < 3 < 2
1 == 1.0
1 == true
'1' == 1
1 != 2
'a' < 'b'
'a' < 1
nil < 1
[1, 2] < [1, 3]
(1, 2) == [1, 2]
[1, [2]] == [1, [2.0]]
{'a': 1} == {'a': 1.0}
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
nil == none
missing == nil
missing == other
1 in l
9 not in l
'ell' in s
'' in s
1 in s
'a' in d
'zz' in d
not 'a' in d
nil in l
'x' in missing
'x' in nil
1 ~ 2 ~ 'x'
'a' ~ nil ~ yes ~ 1.0
'a' + 'b'
'a' + 1
1 + 'a'
'a' * 3
3 * 'ab'
'ab' * -1
[1] * 2 + [2]
(1,) + (2,)
[1] + (2,)
'x' 'y' "z"
'tab\there' "nl\nx" '\x41\u00e9\U0001F642\101\q'
'it\'s' "say \"x\""
s[0]
s[-1]
s[99]
s[99] is defined
s[1:4]
s[:-3]
s[::-1]
s[::2]
s[-100:100]
s[5:2]
s[::0]
s[n:]
u[3:9]
u[-1]
u[::-1]
l[0]
l[-1]
l[5] is defined
l[1:]
l[::-1]
l[:1] + l[2:]
l['x']
(1, 2, 3)[1:]
range(5)[1:3]|list
d.a
d['a']
d.c.d[1]
d.c.d.0
d['items']
d.zz
d.zz.y
d.zz is defined
d['c']['d'][0]
nil.x
nil.x.y
nil[0]
5 .x
missing
missing.x
missing[0]
missing()
missing + 1
'a' + missing
missing ~ 'a'
missing|length
missing|list
missing|upper
missing|tojson
missing|int
missing|default('x')
missing.x|default('x')
d.zz|default('x')
empty|default('x')
empty|default('x', true)
nil|d('x')
nil|default('x', boolean=true)
no|default(1, true)
missing|default
nil
yes
[nil, yes, no, 1, 2.0, 'x', missing]
{'a': [1, (2,), ()], 3: {}}
('a',)
()
[]
{}
quotes
[quotes]
["it's"]
['"']
control
[control]
u
[u]
nested
d
rows
[1, 2,]
(1, 2, 3)
1, 2
{'a': 1, 'a': 2}
{1: 'a', true: 'b', 1.0: 'c'}
{[1]: 2}
s|upper
s|lower
s|title
"it's a-b (c [d {e <f"|title
s|capitalize
'ÉCOLE'|capitalize
u|upper
u|lower
u|title
u.title()
u.upper()
u.lower()
u.swapcase()
u|length
'ΑΣ'.lower()
s|length
l|length
d|length
5|length
nil|length
t|trim
t|trim ~ '|'
'xxaxx'|trim('x')
s|replace('l', 'L')
s|replace('l', 'L', 1)
s|replace('', '-')
'aaa'|replace('a', 'aa')
123|replace('2', 'x')
s|reverse
l|reverse|list
s|list
d|list
5|list
s|first
l|first
[]|first
l|last
s|last
d|last
l|join
l|join(', ')
words|join('-')
rows|join('+', attribute='n')
[1, nil, 'x', 2.0]|join('|')
s|join('.')
5|join
l|sort
l|sort(reverse=true)
words|sort
words|sort(case_sensitive=true)
rows|sort(attribute='v')|map(attribute='v')|list
rows|sort(attribute='n,v')|map(attribute='v')|join
rows|sort(attribute='n', reverse=true)|map(attribute='v')|join
[1, 'a']|sort
words|unique|list
l|max
l|min
words|min
[]|max
rows|sum(attribute='v')
l|sum
[1.5, 2]|sum(start=10)
words|sum
d|dictsort
{'B': 1, 'a': 2, 'C': 0}|dictsort
{'B': 1, 'a': 2, 'C': 0}|dictsort(true)
{'B': 1, 'a': 2, 'C': 0}|dictsort(by='value')
{'B': 1, 'a': 2, 'C': 0}|dictsort(reverse=true)
d|items|list
{'x': 1}|items|list
rows|map(attribute='n')|list
rows|map(attribute='on', default='?')|list
words|map('upper')|join
words|map('replace', 'b', 'X')|join(',')
[' a ', 'b ']|map('trim')|list
nested|map('length')|list
words|map('nofilter')|list
l|map|list
l|select|list
[0, 1, '', 'a', nil]|select|list
[0, 1, '', 'a', nil]|reject|list
l|select('odd')|list
l|reject('odd')|list
l|select('gt', 1)|list
l|select('in', [1, 2])|list
rows|selectattr('on')|map(attribute='v')|list
rows|rejectattr('on')|map(attribute='v')|list
rows|selectattr('n', 'equalto', 'x')|map(attribute='v')|list
rows|selectattr('v', '>=', 2)|list|length
rows|selectattr('on', 'defined')|list|length
nil|selectattr('x')|list
nil|map('upper')|list
rows|selectattr('n', 'nosuchtest')|list
[1, 2, 3, 4, 5]|batch(2)|list
[1, 2, 3, 4, 5]|batch(2, 0)|list
[1, 2, 3, 4, 5]|slice(2)|list
[1, 2, 3, 4, 5]|slice(3, 'x')|list
lines|indent
lines|indent(2)
lines|indent(2, true)
lines|indent(2, first=true, blank=true)
lines|indent('> ')
'one'|indent(3)
5|indent
5|string + 'x'
2.50|string
nil|string
[1]|string
'42'|int
' 42 '|int
'4_2'|int
'x'|int
'x'|int(-1)
'3.9'|int
3.9|int
-3.9|int
'ff'|int(base=16)
'0xff'|int(base=16)
'0b11'|int(base=0)
nil|int
yes|int
'1e3'|int
[]|int(5)
'2.5'|float
'x'|float
'inf'|float
'nan'|float
'x'|float(1.5)
7|float
-5|abs
-2.5|abs
'x'|abs
2.5|round
3.5|round
2.567|round(2)
2.345|round(2)
2.1|round(method='ceil')
2.9|round(0, 'floor')
5|round
html|e
html|escape
html|safe
html|e|e
html|forceescape
('<'|safe) + '<'
'<' + ('<'|safe)
('<'|safe) ~ '<'
[html|safe]
html|safe|upper
html|safe is escaped
html|urlencode
'a b/c?d'|urlencode
'x'|center(5)
'x'|center(6) ~ '|'
'one two, three'|wordcount
'%s is %d'|format('x', 3)
'%(a)s'|format(a=1)
'%s %s' % ('a', 1)
'%s' % 'a'
'%5s|%-5s|%05d|%+d|%.2f|%e|%g|%x|%X|%o|%%|%c' % ('a', 'b', 42, 5, 3.14159, 12345.678, 0.0001, 255, 255, 8, 'z')
'%r' % 'it'
'%(x)s-%(y)d' % {'x': 'a', 'y': 2}
'%s' % [1]
'%s'
'%d' % 'x'
'%s %s' % 'a'
'%s' % ('a', 'b')
'%*d' % (5, 42)
'{} and {}'.format('a', 1)
'{1}{0}'.format('a', 'b')
'{x}'.format(x=3)
'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')
'{:05d} {:+} {:,} {:x} {:#x} {:b} {:.2f} {:.1%} {:e}'.format(42, 5, 1234567, 255, 255, 5, 3.14159, 0.256, 12345.678)
'{!r} {!s}'.format('a', 'b')
'{{}}'.format()
'{}'.format()
'{'.format()
'{:.3}'.format('abcdef')
'{:d}'.format('x')
'{}'.format(nil) ~ '{}'.format(yes) ~ '{}'.format([1]) ~ '{}'.format(1.0)
s.upper()
s.split(', ')
s.split('l')
s.split('l', 1)
s.split()
t.split()
' a  b '.split(none, 1)
'a,b,c'.rsplit(',', 1)
' a b  c '.rsplit(none, 1)
s.split('')
lines.splitlines()
lines.splitlines(true)
'a\rb\r\nc\x0bd'.splitlines()
t.strip()
t.lstrip()
t.rstrip()
'xyaxy'.strip('yx')
'xyaxy'.lstrip('x')
s.startswith('Hell')
s.startswith(('x', 'H'))
s.startswith('l', 2)
s.endswith('ld')
s.endswith('World', 0, 5)
s.startswith(1)
s.find('o')
s.find('o', 5)
s.find('zz')
u.find('漢')
s.rfind('o')
s.index('W')
s.index('zz')
s.count('l')
s.count('')
s.replace('l', 'L')
s.replace('l', '', 1)
', '.join(words)
', '.join(l)
''.join(s[:2])
s.title()
"they're bill's".title()
s.capitalize()
s.swapcase()
s.partition(', ')
s.rpartition('o')
s.partition('zz')
s.removeprefix('Hello')
s.removesuffix('x')
'x'.center(6, '*')
'x'.center(5)
'x'.ljust(3) ~ '|'
'x'.rjust(3)
'-42'.zfill(6)
'42'.zfill(1)
'abc'.isalpha()
''.isalpha()
'a1'.isalnum()
'12'.isdigit()
' '.isspace()
'abc'.islower()
'ABc'.isupper()
'é'.isascii()
s.nosuch
s.nosuch()
s.__class__
s.__class__ is defined
d.get('a')
d.get('zz')
d.get('zz', 5)
d.get()
d.keys()
d.values()|list
{'x': 1}.items()
{'x': 1}.items()|list
d.keys()|length
d.keys()[0]
d.update({'x': 1})
d.pop('a')
l.append(1)
l.pop()
l.sort()
l.append is defined
l.index(1)
l.index(9)
l.count(1)
l.x
(1, 2).count(1)
range(3)
range(3)|list
range(1, 4)|list
range(5, 0, -2)|list
range(0)|list
range(1, 2, 0)
range(100001)
range(100000)|length
range('x')
dict(a=1, b=2)
dict({'a': 1}, b=2)
dict([('a', 1), ('b', 2)])
namespace(a=1).a
namespace({'a': 1}, b=2).b
namespace().x
namespace().x is defined
d|tojson
l|tojson
rows|tojson
nested|tojson(indent=2)
d|tojson(indent=4)
[]|tojson(indent=2)
{}|tojson(indent=2)
u|tojson
u|tojson(ensure_ascii=true)
control|tojson
control|tojson(ensure_ascii=true)
quotes|tojson
html|tojson
floats|tojson
[1.0, 1e22, 1e-7, -0.0]|tojson
d|tojson(sort_keys=true)
d|tojson(separators=(',', ':'))
d|tojson(separators=(',', ':'), indent=1)
d|tojson(indent='--')
{1: 'a', none: 'b', true: 'c', 1.5: 'd'}|tojson
{(1,): 2}|tojson
(1, 'a')|tojson
nil|tojson
yes|tojson
'x'|float|tojson
'nan'|float|tojson
range(3)|tojson
range|tojson
l|select|tojson
namespace()|tojson
s is string
n is string
n is number
yes is number
f is float
n is integer
yes is integer
yes is boolean
l is sequence
s is sequence
d is sequence
n is sequence
d is mapping
l is mapping
l is iterable
n is iterable
s is iterable
missing is iterable
missing is sequence
nil is none
missing is none
nil is not none
missing is defined
missing is undefined
d.zz is not defined
yes is true
1 is true
no is false
z is false
range is callable
s is callable
s.upper is callable
n is odd
n is even
n is divisibleby 7
n is divisibleby(2)
n is eq 7
n is equalto(8)
n is gt 5
n is lt 5
n is ge 7
n is le 7
n is ne 7
n is in [7]
n is in [8]
n is sameas n
nil is sameas none
'abc' is lower
'ABC' is upper
'Abc' is lower
'1' is lower
s is filter
'upper' is filter
'odd' is test
n is nosuchtest
n|nosuchfilter
1 if yes else n|nosuchfilter
n|nosuchfilter if no
n is string or n is number
not n is string
n is not string and yes
n is defined is true
-n|abs
(-n)|abs
-(n|abs)
n|string|length
l|first + 1
l|join(',')|upper|length
s.split(', ')[1].upper()[0]|lower
{'a': {'b': [1, {'c': 2}]}}.a.b[1].c
[1, 2, 3][1]
'abc'[1]
{'x': 1}['x']
(s ~ n).upper()
'a' if s is string and s else 'b'
[x for x in l]
s.upper(1)
s|upper(1)
s|replace('a')
s|trim(foo='x')
s|join(d='.')
range(stop=3)
raise_exception('no ' ~ n)
raise_exception()
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y, %A %H:%M %% x')
strftime_now('')
cycler('a', 'b').next()
joiner('|')() ~ 'x'
loop
caller()
1 +
(1
1 2
'abc
{{ 1
[1, 2
{'a' 1}
a.
a|
a is
@
$x
~
none.none
true.x is defined
True, False, None
1.
1.5.5
'a'.b.c
l[1,2] is defined
l[1:2,3]
s[1.0] is defined
s['upper']()
s[nil] is defined
d[l] is defined
d[missing] is defined
d[none] is defined
nil[1:]
d[1:2]
l['a':]
s[missing:]
'%c' % 65
'%c' % 'ab'
'%i%u' % (1, 2)
'%5.1f|%-8.3e|' % (3.14159, 0.5)
'% d' % 5
'%s' % nil
'%s' % (nil,)
'a%'
'%' % ()
'%z' % 1
'%.2s' % 'abc'
'%d' % 3.99
'%x' % 3.5
'%d' % true
s|attr('upper') is callable
d|attr('a') is defined
'\ud800'
u|e
u|urlencode
1 <= 2 >= 2 != 3
l + nil
l - l
-'x'
+'x'
not missing
missing and 1
missing or 1
missing == ''
missing != ''
missing < 1
missing in l
l|length > 2 and 'yes' or 'no'
(l|length) ~ (s|length)
words|map('lower')|unique|sort|join
words|join(', ', nosuch=1)
rows|map(attribute='n')|unique|list
rows|map(attribute='zz')|list
rows|map(attribute='zz.y')|list
nested|map(attribute=0)|list
nested|map(attribute='1.1')|list
rows|map('tojson')|join(';')
rows[0].items()|list
rows[0]|items|list|length
(rows|first).n
(rows|last)['v']
rows|selectattr('v', 'odd')|map(attribute='n')|list
'a\
b'
'\r\n' ~ 'x'
'😀'|length
'😀x'[1]
'😀'|tojson(ensure_ascii=true)
'e\u0301'|upper
'ǆ'|capitalize
'İ'|lower|length
('ab'|safe)|list
messs
 is defined
größe is defined
l|sort(missing)
d|items|map(att='x')|list
[]|map(att='x')|list
[]|select('nosuchtest')|list
(l|select('gt', 9))|map('nofilter')|list
(l|select('gt', 9))|map(x=1)|list
[]|selectattr()|list
(l|select('gt', 9))|selectattr()|list
' 0B1f'|int(base=16)
'0x1f'|int(base=10)
'11'|int(base=1)
'11'|int(base=missing)
'%3%' % ()
'%%|%s%%' % 1
'et |' % missing
'et |' % 5
'%s' % missing
'{!r:>4}|{!rx}'.format('a', 'b')
'a\é\漢\🙂b'
'GΣ Ý'|title
'ΊΣ0.ΥΦΟΣ ΑΣ-ΑΣ'|title
'ΊΣ0.ΥΦΟΣ ΑΣ-ΑΣ'.title()
'ΟΔΟΣ ΟΔΟΣ.'|capitalize
'ΣΣ'|lower
('<'|safe)[0] + '<'
('a'|safe).split('a')
('<b>'|safe)|list
l|sort('_')
l|sort(nil)
l|sort(1)
'a\n'|indent ~ '|'
'a\x0c'|indent ~ '|'
'a\r'|indent ~ '|'
'a\r\n\r\n'|indent(blank=true) ~ '|'
''|indent ~ '|'
dict(missing)
'{} {0}'.format(1)
'{0} {}'.format(1)
'{0} {0}'.format(1)
'inf'|int(5)
'nan'|int(5)
'-0x1F'|int(base=16)
'+0o17'|int(base=0)
'0x'|int(base=16)
'1 2'|int
""
''
' '|trim
"a'b" ~ 'a"b'
""".strip("\n").split("\n")

STATEMENTS = [
    "{% for x in l %}{{ x }}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}",
    "{% for x in missing %}x{% else %}none{% endfor %}",
    "{% for x in nil %}x{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}",
    "{% for x in l if x > 9 %}x{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, b in nested %}{{ a }}-{{ b }};{% endfor %}",
    "{% for a, b in l %}{{ a }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for c in 'aé漢' %}[{{ c }}]{% endfor %}",
    "{% for x in range(3) %}{% for y in range(2) %}{{ loop.index }}{{ loop.depth }} {% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in l %}{% set y = x %}{% endfor %}{{ y }}",
    "{% set y = 0 %}{% for x in l %}{% set y = y + x %}{{ y }} {% endfor %}{{ y }}",
    "{% set ns = namespace(y=0) %}{% for x in l %}{% set ns.y = ns.y + x %}{% endfor %}{{ ns.y }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}",
    "{% set d.x = 1 %}",
    "{% set nope.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a, b = [1] %}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]{{ x|length }}",
    "{% set x | upper %}a{{ n }}b{% endset %}[{{ x }}]",
    "{% set x | replace('a', 'z') | upper %}a{{ n }}b{% endset %}[{{ x }}]",
    "{% if no %}a{% elif n == 7 %}b{% elif yes %}c{% else %}d{% endif %}",
    "{% if no %}a{% elif no %}b{% else %}d{% endif %}",
    "{% if no %}a{% endif %}",
    "{% if missing %}a{% else %}b{% endif %}",
    "{% if yes %}{% set q = 1 %}{% endif %}{{ q }}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }} {{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro fact(n) %}{% if n < 2 %}1{% else %}{{ n * fact(n - 1)|int }}{% endif %}{% endmacro %}{{ fact(10) }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}",
    "{% macro m() %}{% set n = 1 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}",
    "{% macro m() %}x{% endmacro %}{{ m() is string }}{{ m()|length }}{{ m.name }}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in {{ n }}{% endcall %}",
    "{% macro m() %}[{{ caller(1, 2) }}]{% endmacro %}{% call(a, b=5) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
    "{% call n %}{% endcall %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% filter upper %}a{{ s }}b{% endfilter %}",
    "{% filter replace('l', 'x')|upper %}{{ s }}{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% generation %}x{{ n }}{% set q = 1 %}{% endgeneration %}{{ q }}",
    "{% print n %}{% print 1, 2 %}",
    "{% raw %}{{ x }} {% y %}{# z #}{% endraw %}",
    "a\n{% raw %}\n b {{ x }}\n {% endraw %}\nc",
    "a {%- raw -%} \n b {{ x }} {%- endraw -%} c",
    "a{# comment {{ x }} #}b",
    "a\n  {# comment #}\nb",
    "a  {#- comment -#}  b",
    "a\n{% if yes %}\nb\n{% endif %}\nc\n",
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n\n",
    "a  {% if yes %}  b  {% endif %}  c",
    "a  {%- if yes -%}  b  {%- endif -%}  c",
    "a\n  {%+ if yes %}\nb{% endif +%}\nc",
    "a \n {{- n -}} \n b",
    "a\n  {{ n }}\n  b",
    "{{ n }}\n",
    "{{ n }}\n\n",
    "{{ n }}\r\n{{ n }}\rx\r\n",
    "  {% if yes %}x{% endif %}",
    "\t {% if yes %}\n\tx{% endif %}\n",
    "x {% if yes %}\n  y\n  {%- endif %}\n z",
    "{%- if yes -%}\n\n x \n\n{%- endif -%}",
    "{%if yes%}x{%endif%}",
    "{% if yes %}\n\n{% endif %}x",
    "a{{ '\n' }}{% if yes %}\nb{% endif %}",
    "{{ '{{' }}{{ '}}' }}{{ '{%' }}",
    "{{ {'a': {'b': 1}} }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{'x'}}{{\"y\"}}",
    "{",
    "{ {",
    "a{b}c}}%}#}",
    "",
    "\n",
    "\n\n",
    "plain",
    "{{ }}",
    "{% %}",
    "{% if %}{% endif %}",
    "{% if yes %}",
    "{% endif %}",
    "{% for x in l %}",
    "{% for in l %}{% endfor %}",
    "{% for x l %}{% endfor %}",
    "{% for x in l %}{% endif %}",
    "{% set %}",
    "{% set 1 = 2 %}",
    "{% set true = 2 %}",
    "{% set x = %}",
    "{% set x.y.z = 1 %}",
    "{% macro %}{% endmacro %}",
    "{% nosuchtag %}",
    "{% if yes %}{% else %}{% else %}{% endif %}",
    "{# not closed",
    "{% raw %} not closed",
    "{{ 'not closed }}",
    "{{ (1, 2] }}",
    "{{ 1 }",
    "{% if yes }}{% endif %}",
    "{{ x %}",
    "{% break %}",
    "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{{ m() }}{% endfor %}",
    "{% if no %}{{ n|nosuchfilter }}{% endif %}ok",
    "{% if no %}{{ n is nosuchtest }}{% endif %}ok",
    "{% if yes %}{{ n|nosuchfilter }}{% endif %}ok",
    "{% if no %}{% for x in l %}{{ n|nosuchfilter }}{% endfor %}{% endif %}ok",
    "{% for x in [] %}{{ n|nosuchfilter }}{% endfor %}ok",
    "{% set x = l %}{{ x }}{% set x = d %}{{ x.a }}",
    "{% set x = [] %}{% for y in l %}{% set x = x + [y * 2] %}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=[]) %}{% for y in l %}{% set ns.x = ns.x + [y * 2] %}{% endfor %}{{ ns.x }}",
    "{% set g = l|select %}{{ g|list }}{{ g|list }}",
    "{% set g = l|map('string') %}{{ g|join }}{{ g|join }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}",
    "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% set m = d.get %}{{ m('a') }}",
    "{% set f = range %}{{ f(2)|list }}",
    "{% set range = 5 %}{{ range }}",
    "{% set s = 'x' %}{{ s }}",
    "{{ s }}{% set s = 'x' %}{{ s }}",
    "{% for s in l %}{{ s }}{% endfor %}{{ s }}",
    "{% for x in l %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for x in rows %}{{ loop.index }}. {{ x.n }} {{ 'on' if x.on else 'off' }}\n{% endfor %}",
    "{% for x in rows|sort(attribute='v') %}{{ x.v }}{% endfor %}",
    "{% for x in l|reverse %}{{ x }}{% endfor %}",
    "{% for x in l[::-1] %}{{ x }}{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "{% for x in (1, 2) if yes %}{{ x }}{% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{{ loop is defined }}{% for x in l %}{{ loop is defined }}{% endfor %}",
    "{% for x in l %}{% set loop_first = loop.first %}{% for y in l %}{{ loop_first }}{% endfor %}{% endfor %}",
    "{% if 'a' in d and d.a is string and d.a|length == 1 %}ok{% endif %}",
    "{% if l is iterable and l is not mapping and l is not string %}list{% endif %}",
    "{%- set x = 1 -%} {{- x -}} \n",
    "{{ raise_exception('stop: ' + s) }}",
    "{% if n != 7 %}{{ raise_exception('never') }}{% endif %}fine",
    "{%- macro type(p) -%}{%- if p is mapping -%}map{%- elif p is sequence and p is not string -%}"
    "[{%- for x in p -%}{{ type(x) }}{%- if not loop.last -%},{%- endif -%}{%- endfor -%}]"
    "{%- else -%}{{ p|string }}{%- endif -%}{%- endmacro -%}{{ type(nested) }}{{ type(rows) }}",
    "{% set content = '<think>a</think>b' %}{{ content.split('</think>')[-1].lstrip('\\n') }}",
    "{% set content = '<think>a</think>b' %}{{ content.split('</think>')[0].split('<think>')[-1] }}",
    "{{ '<|' ~ s ~ '|>' }}\n{{- bos }}{{ eos or '' }}",
    "{% set x = {'a': 1, 'b': [1, 2]} %}{{ x }}{{ x|tojson }}{{ x.b[-1] }}",
    "{% set x = dict(d, **{'new': 1}) %}{{ x.new }}{{ x.a }}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}",
    "{% macro m(x) %}{% if x %}{{ x[0] }}{{ m(x[1:]) }}{% endif %}{% endmacro %}{{ m('abc') }}",
    "{% for x in l %}{% continue %}{% else %}none{% endfor %}",
    "{% for x in l %}{{ x }}{% break %}{% else %}none{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{% else %}none{% endfor %}",
    "{% for x in l %}{% for y in [] %}{% else %}{{ x }}{% break %}{% endfor %}{% endfor %}",
    "{% if no %}{% continue %}{% endif %}",
    "a{% raw %}",
    "a{%- raw -%}  ",
    "a{#",
    "a {#-",
    "a{# ",
    "a{%",
    "a{{",
    "{% macro m() %}{% endmacro %}{{ m }}{{ [m] }}",
    "{% macro m() %}{{ caller }}{% endmacro %}{% call m() %}{% endcall %}",
    "{{ s\n  | upper\n  | lower }}",
    "{% set\n x\n =\n 1\n %}{{ x }}",
    "{{ 1 -}}\n   {{- 2 }}",
    "{% if yes -%}\n  a\n{%- else -%}\n  b\n{%- endif %}\n",
    "äöü {{ u }} 漢",
    "{{ {'ключ': 1}['ключ'] }}",
]
