
no tests ran in 0.11s
exit 5
