"""Lots: prepare a release so that chance decides what is published, and claim its use later.

vault      what the owner keeps: files, and what they hold
versions   the two versions of an image and of its caption
elsewhere  which images stand in another folder, too
commit     read the images, and fix the lot by one number before anything is drawn
publish    draw, and write what is published and what is held back
asking     ask an encoder about the images of a part
claim      ask about all, or until it is decided, and judge
statement  a claim to hand over, and its check without the vault
"""
