# see the README
