"""Logic of Blackwell SGLang: plain Python, no Ansible import, Python 3.9 and later."""
