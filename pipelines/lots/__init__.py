"""Lots: prepare a release so that chance decides what is published, and claim its use later.

vault      what the owner keeps: files, and what they hold
commit     read the images, and fix the lot by one number before anything is drawn
publish    draw, and write what is published and what is held back
question   what is asked, registered in the chain
claim      ask about all, or until it is decided, and judge
statement  a claim to hand over; verify: its check without the vault; again: ask its encoder again
"""
