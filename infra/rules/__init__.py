"""Our own validators over synthesized templates: what AWS refuses late, and what costs money or data (HF001...).

A new rule is one pure function over an Assembly in the file of its subject, one line in that file's RULES with the next
id, and one broken template in tests/infra/rules that only it catches.
"""
